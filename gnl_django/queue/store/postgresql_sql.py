"""The texts of the PostgreSQL store: each measured, each with the planner's trap it avoids.

`clock_timestamp()` is volatile and never an index condition, hence `(SELECT {now})`; an UPDATE
takes its ids from an ARRAY, because joined with a CTE it scans the table; `state || ''` names the
from-state without proving a partial index, whose dead entries would be walked (10 rows: 21 ms
against 0.2 ms).
"""

from functools import cache

from gnl_django.runs.journal.owned import following, reviving

#: First statement of a batch: plans that do not depend on statistics, for this transaction only.
PLANNER = (
    "SELECT set_config('enable_seqscan','off',true), set_config('enable_bitmapscan','off',true), "
    "set_config('enable_sort','off',true), set_config('enable_incremental_sort','off',true), "
    "set_config('jit','off',true), "
    "set_config('plan_cache_mode','force_generic_plan',true)"
)

_DUE = "coalesce(%(run_at)s::timestamptz, {now} + %(delay)s::float8 * interval '1 second')"


@cache
def insert(*, keyed: bool, timed: bool) -> str:
    """Return the INSERT of one job, no longer than it must be (no time, no key: 160 -> 120 us).

    keyed: with a key, whose stored job makes it do nothing. timed: run_at or a delay decides the
    state.
    """
    columns = {
        "kind": "%(kind)s",
        "queue": "%(queue)s",
        "org": "%(org)s",
        "state": f"CASE WHEN {_DUE} <= {{now}} THEN 'ready' ELSE 'scheduled' END"
        if timed
        else "'ready'",
        "priority": "%(priority)s",
        "payload": "%(payload)s",
        "meta": "%(meta)s",
        "sensitive": "%(sensitive)s",
        "run_at": _DUE if timed else "{now}",
        "attempt": "0",
        "max_attempts": "%(max_attempts)s",
        "revivals": "0",
        "deferrals": "0",
        "cancel_reason": "''",
        "note": "''",
        "error_class": "''",
        "error": "''",
        "enqueued_at": "{now}",
    }
    if keyed:
        columns |= {"key": "%(key)s", "dedup": "%(dedup)s"}
    text = (
        f"INSERT INTO gnl_django_job ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"
    )
    return (
        f"{text} ON CONFLICT (dedup) WHERE dedup IS NOT NULL DO NOTHING RETURNING id"
        if keyed
        else f"{text} RETURNING id"
    )


INSERT_MANY = """
INSERT INTO gnl_django_job (kind, queue, org, state, priority, payload, meta, sensitive, key, dedup,
 run_at, attempt, max_attempts, revivals, deferrals, cancel_reason, note,
 error_class, error, enqueued_at)
SELECT h.kind, h.queue, h.org,
 CASE WHEN coalesce(h.run_at, n.at + h.delay * interval '1 second') <= n.at
  THEN 'ready' ELSE 'scheduled' END,
 h.priority, h.payload, h.meta, h.sensitive, h.key, h.dedup,
 coalesce(h.run_at, n.at + h.delay * interval '1 second'), 0, h.max_attempts, 0, 0, '', '', '', '',
 n.at
FROM (SELECT {now} AS at) n,
 unnest(%(kind)s::text[], %(queue)s::text[], %(org)s::text[], %(priority)s::smallint[],
  %(payload)s::text[], %(meta)s::text[], %(sensitive)s::bool[], %(key)s::text[], %(dedup)s::text[],
  %(run_at)s::timestamptz[], %(delay)s::float8[], %(max_attempts)s::smallint[])
 WITH ORDINALITY h(kind, queue, org, priority, payload, meta, sensitive, key, dedup, run_at,
  delay, max_attempts, ord)
ORDER BY h.ord
ON CONFLICT (dedup) WHERE dedup IS NOT NULL DO NOTHING
RETURNING id, dedup
"""

FIND_KEYS = "SELECT dedup, id FROM gnl_django_job WHERE dedup = ANY (%(dedups)s::text[])"

FIRST_LANE = (
    "SELECT org FROM gnl_django_job WHERE state='ready' AND queue=%(queue)s "
    "AND kind = ANY (%(kinds)s::text[]) ORDER BY id + 0 LIMIT 1"
)

# Each part is one entry of its index, and the ORDER BY names that index to the planner.
LOOK = """
SELECT
  EXISTS (SELECT 1 FROM unnest(%(queues)s::text[]) q(name) CROSS JOIN LATERAL (
    SELECT 1 FROM gnl_django_job WHERE state='ready' AND queue=q.name
      AND kind = ANY (%(kinds)s::text[]) ORDER BY org, priority DESC LIMIT 1) r),
  EXISTS (SELECT 1 FROM gnl_django_job WHERE state='running'
    AND lease_expires_at <= (SELECT {now}) ORDER BY lease_expires_at, id LIMIT 1),
  (SELECT extract(epoch FROM run_at - {now})::float8 FROM gnl_django_job
   WHERE state='scheduled' ORDER BY run_at, id LIMIT 1)
"""

# The ring: hops from lane to lane inside gnl_job_ready, forward from the cursor, then from the
# start. They are ordered by the index's next column too: by org alone the planner takes
# gnl_job_org, and walks finished rows, whenever its statistics say that most rows are ready
# (2,500 instead of 4,200 jobs/s). `p_min` and `p_max` are constants it cannot see through: with
# them it reads a lane in order; a LIMIT it does not know would make it sort the whole lane
# (100,000 jobs: 17-62 ms). The order in which handlers start is the caller's to make: windows and
# a join for it take 6 to 10 % of the statement.
_CLAIM = """
WITH RECURSIVE
fwd(org, hop) AS (
  (SELECT org, 1 FROM gnl_django_job WHERE state='ready' AND queue=%(queue)s
    AND org <after> %(cursor)s AND kind = ANY (%(kinds)s::text[])
    ORDER BY org, priority DESC LIMIT 1)
  UNION ALL
  SELECT (SELECT j.org FROM gnl_django_job j WHERE j.state='ready' AND j.queue=%(queue)s
    AND j.org > fwd.org AND j.kind = ANY (%(kinds)s::text[])
    ORDER BY j.org, j.priority DESC LIMIT 1), hop + 1
  FROM fwd WHERE fwd.org IS NOT NULL AND hop < %(hops)s::int),
back(org, hop) AS (
  (SELECT org, 1 FROM gnl_django_job WHERE state='ready' AND queue=%(queue)s
    AND org <upto> %(cursor)s AND kind = ANY (%(kinds)s::text[])
    AND (SELECT count(org) FROM fwd) < %(hops)s::int ORDER BY org, priority DESC LIMIT 1)
  UNION ALL
  SELECT (SELECT j.org FROM gnl_django_job j WHERE j.state='ready' AND j.queue=%(queue)s
    AND j.org > back.org AND j.org <upto> %(cursor)s AND j.kind = ANY (%(kinds)s::text[])
    ORDER BY j.org, j.priority DESC LIMIT 1), hop + 1
  FROM back WHERE back.org IS NOT NULL AND hop < %(hops)s::int),
ring AS MATERIALIZED (
  SELECT org, row_number() OVER (ORDER BY part, hop) AS pos, count(*) OVER () AS lanes,
    (-100)::smallint AS p_min, 100::smallint AS p_max
  FROM (
    SELECT org, hop, part FROM (
      SELECT org, hop, 1 AS part FROM fwd WHERE org IS NOT NULL
      UNION ALL SELECT org, hop, 2 FROM back WHERE org IS NOT NULL) u
    WHERE org <> ALL (%(paused)s::text[]) ORDER BY part, hop LIMIT %(n)s::int) r),
pick AS MATERIALIZED (
  SELECT p.id FROM ring CROSS JOIN LATERAL (
    SELECT id FROM gnl_django_job
    WHERE state='ready' AND queue=%(queue)s AND org=ring.org AND kind = ANY (%(kinds)s::text[])
      AND priority >= ring.p_min AND priority <= ring.p_max
    ORDER BY priority DESC, id
    LIMIT %(n)s::int / ring.lanes
      + CASE WHEN ring.pos <= %(n)s::int %% ring.lanes THEN 1 ELSE 0 END
    FOR UPDATE SKIP LOCKED) p),
upd AS (
  UPDATE gnl_django_job j SET state='running', attempt=j.attempt+1, claim_token=%(token)s,
    lease_expires_at={now} + %(ttl)s::float8 * interval '1 second', started_at={now},
    worker=%(worker)s, max_attempts=coalesce(%(max_attempts)s::smallint, j.max_attempts),
    progress=NULL
  WHERE j.id = ANY (ARRAY(SELECT id FROM pick)) AND j.state || '' = 'ready'
  RETURNING j.id, j.kind, j.org, j.queue, j.payload, j.meta, j.run_id,
    j.scheduled_for AT TIME ZONE 'UTC' AS scheduled_for, j.attempt, j.max_attempts, j.priority)
SELECT upd.*, (SELECT count(*) FROM ring) AS lanes,
  (SELECT org FROM ring ORDER BY pos DESC LIMIT 1) AS last_lane
FROM (VALUES (1)) one(x) LEFT JOIN upd ON true
"""
CLAIM = _CLAIM.replace("<after>", ">").replace("<upto>", "<=")
CLAIM_AT_CURSOR = _CLAIM.replace("<after>", ">=").replace("<upto>", "<")

# The rows that are ours and nobody else holds: a batch never waits for a row (queue.md R25). They
# are looked up one by one, and found again by their place (ctid) to be updated: joined by id the
# planner compares each with each, or walks the whole primary key of what it thinks is a small table
# (settle of 100: 2,050 us of the server, 970 so). A row that changed under the statement has moved,
# is not updated, and comes with the next pass. Whoever is left out is asked for with OURS.
_MINE = """
mine AS MATERIALIZED (
  SELECT h.*, m.place FROM held h CROSS JOIN LATERAL (
    SELECT j.ctid AS place FROM gnl_django_job j
    WHERE j.id = h.id AND j.claim_token = h.token AND j.state || '' = 'running'<and>
    FOR NO KEY UPDATE SKIP LOCKED) m),
"""
_MINE_ALL = _MINE.replace("<and>", "")
_MINE_WANTED = _MINE.replace("<and>", " AND j.cancel_requested_at IS NULL")
_HELD = "WITH held AS (SELECT * FROM unnest(%(ids)s::bigint[], %(tokens)s::text[]) h(id, token)),"

#: Which claims are still ours, and whether somebody asks for their end.
OURS = """
SELECT h.id, h.token, j.cancel_requested_at IS NOT NULL
FROM unnest(%(ids)s::bigint[], %(tokens)s::text[]) h(id, token)
JOIN gnl_django_job j ON j.id = h.id AND j.claim_token = h.token AND j.state || '' = 'running'
"""

RENEW = f"""
{_HELD}
{_MINE_ALL}
upd AS (
  UPDATE gnl_django_job SET lease_expires_at={{now}} + %(ttl)s::float8 * interval '1 second'
  WHERE ctid = ANY (ARRAY(SELECT place FROM mine)) AND state || '' = 'running'
  RETURNING id, cancel_requested_at IS NOT NULL AS cancel)
SELECT h.id, h.token, upd.cancel, EXISTS (SELECT 1 FROM gnl_django_job j
  WHERE j.id = h.id AND j.claim_token = h.token AND j.state || '' = 'running')
FROM held h LEFT JOIN upd USING (id)
"""

_ATTEMPT = (
    "INSERT INTO gnl_django_attempt (job_id, number, revival, outcome, error_class, message, "
    "traceback, worker, claim_token, started_at, finished_at)"
)

# Successes, by far the most of all outcomes, in the fewest words: those that bring no result need
# no join (of 100: 970 us of the server, 800 so), and a job whose cancel is asked for is left to
# SETTLE, with its Attempt row.
SETTLE_PLAIN = f"""
{_HELD}
{_MINE_WANTED}
upd AS (
  UPDATE gnl_django_job SET state='succeeded', result=NULL, note='', finished_at={{now}},
    claim_token=NULL, lease_expires_at=NULL
  WHERE ctid = ANY (ARRAY(SELECT place FROM mine)) AND state || '' = 'running'
  RETURNING id, state)
SELECT id, state FROM upd
"""

SETTLE_RESULTS = f"""
WITH held AS (SELECT * FROM unnest(%(ids)s::bigint[], %(tokens)s::text[], %(results)s::text[],
  %(notes)s::text[]) h(id, token, result, note)),
{_MINE_WANTED}
upd AS (
  UPDATE gnl_django_job job SET state='succeeded', result=h.result, note=h.note,
    finished_at={{now}}, claim_token=NULL, lease_expires_at=NULL
  FROM mine h WHERE job.ctid = h.place AND job.state || '' = 'running'
  RETURNING job.id, job.state)
SELECT id, state FROM upd
"""

SETTLE = f"""
WITH held AS (SELECT * FROM unnest(%(ids)s::bigint[], %(tokens)s::text[], %(states)s::text[],
  %(refunds)s::smallint[], %(deferred)s::smallint[], %(delays)s::float8[], %(notes)s::text[],
  %(recorded)s::text[], %(classes)s::text[], %(errors)s::text[], %(keys)s::text[],
  %(tracebacks)s::text[])
  h(id, token, state, refund, deferred, delay, note, recorded, error_class, error, error_key,
    traceback)),
{_MINE_ALL}
upd AS (
  UPDATE gnl_django_job job SET
    state = CASE WHEN cancel_requested_at IS NULL THEN h.state ELSE 'canceled' END,
    attempt = attempt - CASE WHEN cancel_requested_at IS NULL THEN h.refund ELSE 1 END,
    deferrals = deferrals + CASE WHEN cancel_requested_at IS NULL THEN h.deferred ELSE 0 END,
    run_at = CASE WHEN cancel_requested_at IS NULL AND h.state = 'scheduled'
      THEN {{now}} + h.delay * interval '1 second' ELSE run_at END,
    finished_at = CASE WHEN cancel_requested_at IS NOT NULL OR h.state IN ('dead', 'canceled')
      THEN {{now}} END,
    note = CASE WHEN cancel_requested_at IS NULL THEN h.note ELSE '' END,
    error_class = CASE WHEN cancel_requested_at IS NULL AND h.error_class <> ''
      THEN h.error_class ELSE job.error_class END,
    error = CASE WHEN cancel_requested_at IS NULL AND h.error_class <> ''
      THEN h.error ELSE job.error END,
    error_key = CASE WHEN cancel_requested_at IS NULL AND h.error_class <> ''
      THEN h.error_key ELSE job.error_key END,
    claim_token = NULL, lease_expires_at = NULL
  FROM mine h WHERE job.ctid = h.place AND job.state || '' = 'running'
  RETURNING job.id, job.state, job.attempt, job.revivals, job.worker, job.started_at,
    cancel_requested_at IS NOT NULL AS cancel),
att AS (
  {_ATTEMPT}
  SELECT upd.id, upd.attempt + CASE WHEN cancel THEN 1 ELSE h.refund END, upd.revivals,
    CASE WHEN cancel THEN 'canceled' ELSE h.recorded END,
    CASE WHEN cancel THEN '' ELSE h.error_class END, CASE WHEN cancel THEN '' ELSE h.error END,
    CASE WHEN cancel THEN '' ELSE h.traceback END, upd.worker, h.token, upd.started_at, {{now}}
  FROM upd JOIN held h USING (id) WHERE cancel OR h.recorded <> '')
SELECT id, state FROM upd
"""

#: The run ids of jobs that a statement has changed.
_RUNS_OF = "SELECT coalesce(run_id, 'job:' || id)"

# Behind a settle: the runs of these jobs follow what the jobs have become, ours or not.
FOLLOW = f"""
WITH ended AS MATERIALIZED (
  {_RUNS_OF}, state FROM gnl_django_job WHERE id = ANY (%(ids)s::bigint[])),
runs AS ({following("SELECT * FROM ended")} RETURNING 1)
SELECT count(*) FROM runs
"""

PROGRESS = f"""
WITH held AS (SELECT * FROM unnest(%(ids)s::bigint[], %(tokens)s::text[], %(progress)s::text[])
  h(id, token, progress)),
{_MINE_ALL}
upd AS (
  UPDATE gnl_django_job job SET progress = h.progress
  FROM mine h WHERE job.ctid = h.place AND job.state || '' = 'running' RETURNING 1)
SELECT count(*) FROM upd
"""

PROMOTE = """
WITH due AS MATERIALIZED (
  SELECT id FROM gnl_django_job WHERE state='scheduled' AND run_at <= (SELECT {now})
  ORDER BY run_at, id LIMIT %(batch)s::int FOR UPDATE SKIP LOCKED),
upd AS (
  UPDATE gnl_django_job SET state='ready'
  WHERE id = ANY (ARRAY(SELECT id FROM due)) AND state || '' = 'scheduled' RETURNING 1)
SELECT (SELECT count(*) FROM upd),
  (SELECT extract(epoch FROM run_at - {now})::float8 FROM gnl_django_job
   WHERE state='scheduled' AND run_at > (SELECT {now}) ORDER BY run_at, id LIMIT 1)
"""

REAP = f"""
WITH gone AS MATERIALIZED (
  SELECT id, claim_token FROM gnl_django_job
  WHERE state='running' AND lease_expires_at <= (SELECT {{now}})
  ORDER BY lease_expires_at, id LIMIT %(batch)s::int FOR UPDATE SKIP LOCKED),
upd AS (
  UPDATE gnl_django_job SET
    state = CASE WHEN cancel_requested_at IS NOT NULL THEN 'canceled'
      WHEN attempt >= max_attempts THEN 'dead' ELSE 'ready' END,
    finished_at = CASE WHEN cancel_requested_at IS NOT NULL OR attempt >= max_attempts
      THEN {{now}} END,
    error_class = CASE WHEN cancel_requested_at IS NULL THEN %(error_class)s ELSE error_class END,
    error = CASE WHEN cancel_requested_at IS NULL THEN %(error)s ELSE error END,
    error_key = CASE WHEN cancel_requested_at IS NULL THEN left(encode(sha256(
      convert_to(kind, 'UTF8') || '\\x00'::bytea || convert_to(%(error_class)s, 'UTF8')
      || '\\x00'::bytea), 'hex'), 16) ELSE error_key END,
    claim_token = NULL, lease_expires_at = NULL
  WHERE id = ANY (ARRAY(SELECT id FROM gone)) AND state || '' = 'running'
    AND lease_expires_at <= (SELECT {{now}})
  RETURNING id, kind, org, state, attempt, revivals, worker, started_at, run_id),
runs AS ({following(f"{_RUNS_OF}, state FROM upd")}),
att AS (
  {_ATTEMPT}
  SELECT upd.id, upd.attempt, upd.revivals, 'lease_lost', %(error_class)s, %(error)s, '',
    coalesce(upd.worker, ''), gone.claim_token, coalesce(upd.started_at, {{now}}), {{now}}
  FROM upd JOIN gone USING (id))
SELECT id, kind, org, state FROM upd
"""

_RETRY = f"""
upd AS (
  UPDATE gnl_django_job SET state='ready', attempt=0, revivals=revivals+1, run_at={{now}},
    finished_at=NULL, cancel_requested_at=NULL, cancel_reason='', result=NULL, note='',
    error_class='', error='', error_key=NULL, progress=NULL
  WHERE id = ANY (ARRAY(<picked>)) AND state IN ('dead', 'canceled') RETURNING id, run_id),
runs AS ({reviving(f"{_RUNS_OF} FROM upd")})
SELECT id FROM upd
"""
RETRY = "WITH" + _RETRY.replace("<picked>", "SELECT unnest(%(ids)s::bigint[])")
RETRY_UNLOCKED = (
    "WITH picked AS MATERIALIZED (SELECT id FROM gnl_django_job "
    "WHERE id = ANY (%(ids)s::bigint[]) AND state IN ('dead', 'canceled') "
    "ORDER BY id FOR UPDATE SKIP LOCKED), " + _RETRY.replace("<picked>", "SELECT id FROM picked")
)

CANCEL = f"""
WITH upd AS (
  UPDATE gnl_django_job SET
    cancel_reason = CASE WHEN cancel_requested_at IS NULL THEN %(reason)s ELSE cancel_reason END,
    cancel_requested_at = coalesce(cancel_requested_at, {{now}}),
    finished_at = CASE WHEN state = 'running' THEN finished_at ELSE {{now}} END,
    state = CASE WHEN state = 'running' THEN 'running' ELSE 'canceled' END
  WHERE id = %(id)s AND state IN ('scheduled', 'ready', 'running')
  RETURNING id, kind, org, state, run_id),
runs AS ({following(f"{_RUNS_OF}, state FROM upd")})
SELECT kind, org, state FROM upd
"""
