"""The HTTP service, which identifies plants. It never imports torch, torchvision, timm or training."""
