"""No models: Rota's tables are its own. Django tells only apps with this module when it has migrated."""
