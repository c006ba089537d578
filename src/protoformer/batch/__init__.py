"""Many videos, each done once: on this machine or on a Ray cluster, and again from where it stopped."""

from protoformer.batch.jobs import Job, JobReport, JobSetup, Status
from protoformer.batch.ledger import list_jobs
from protoformer.batch.running import Batch, BatchCallback, BatchResult, run_batch

__all__ = ["Batch", "BatchCallback", "BatchResult", "Job", "JobReport", "JobSetup", "Status", "list_jobs", "run_batch"]
