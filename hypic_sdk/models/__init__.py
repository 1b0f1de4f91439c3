"""One file a model type; `loader.MODEL_TYPES` lists them."""
