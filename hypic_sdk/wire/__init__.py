"""Request and reply models, shared by server, client and adapters."""
