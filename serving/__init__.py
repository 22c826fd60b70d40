"""The service: a bundle plus photographs becomes an answer. It never imports torch, torchvision, timm or training."""
