"""Many videos, each done once: on this machine or on a Ray cluster, and again from where it stopped."""

from protoformer.inference.batch.jobs import Job, Report, Status, Work
from protoformer.inference.batch.naming import video_jobs
from protoformer.inference.batch.running import Batch, BatchResult, Told, run_batch

__all__ = ["Batch", "BatchResult", "Job", "Report", "Status", "Told", "Work", "run_batch", "video_jobs"]
