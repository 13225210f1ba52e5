"""Capture local gradients of a PyTorch training job as a sparscale trace (docs/capture.md)."""

from sparscale_capture.capture import Capture
from sparscale_capture.finish import finish
from sparscale_capture.windows import early_middle_late, every

__all__ = ["Capture", "early_middle_late", "every", "finish"]
