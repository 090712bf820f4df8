"""What a model needs: config.json to attention layers."""
