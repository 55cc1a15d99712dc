"""The queue under every configuration of a Django project: as an app, for its handlers."""
