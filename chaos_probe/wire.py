"""Between the probes' nouns and the contract ``gpugrade.v1``. Needs protobuf, not gRPC."""

from collections.abc import Iterable, Sequence

from gpugrade.v1 import probe_pb2

from chaos_probe import spool
from chaos_probe.records import UNITS, Gpu, RunPhase, RunRecord, Sample, SampleStatus
from chaos_probe.spool import Record, Spool

_STATUS = {
    SampleStatus.OK: probe_pb2.SAMPLE_STATUS_OK,
    SampleStatus.FAILED: probe_pb2.SAMPLE_STATUS_FAILED,
    SampleStatus.TIMEOUT: probe_pb2.SAMPLE_STATUS_TIMEOUT,
}
_PHASE = {
    RunPhase.ACTIVE: probe_pb2.RUN_PHASE_ACTIVE,
    RunPhase.REVERTED: probe_pb2.RUN_PHASE_REVERTED,
    RunPhase.FAILED_REVERT: probe_pb2.RUN_PHASE_FAILED_REVERT,
}


def sample_message(sample: Sample) -> probe_pb2.Sample:
    """Return a sample as it travels."""
    message = probe_pb2.Sample(
        id=sample.id,
        gpu_index=sample.gpu,
        gpu_uuid=sample.uuid,
        dimension=sample.dimension,
        unit=UNITS[sample.dimension],
        status=_STATUS[sample.status],
        run=sample.run,
        source=sample.source,
        detail=sample.detail,
    )
    message.at.FromMicroseconds(round(sample.at * 1e6))
    if sample.value is not None:
        message.value = sample.value
    vitals, context = sample.vitals, message.context
    context.driver = sample.driver
    if vitals.power_limit_w is not None:
        context.power_limit_w = vitals.power_limit_w
    if vitals.sm_clock_mhz is not None:
        context.sm_clock_mhz = vitals.sm_clock_mhz
    if vitals.temperature_c is not None:
        context.temperature_c = vitals.temperature_c
    if vitals.power_w is not None:
        context.power_w = vitals.power_w
    return message


def run_message(run: RunRecord) -> probe_pb2.Run:
    """Return a run's record as it travels."""
    message = probe_pb2.Run(
        id=run.id, kind=run.kind, gpu_indices=run.gpus, phase=_PHASE[run.phase], detail=run.detail[:1000]
    )
    message.started.FromMicroseconds(round(run.started * 1e6))
    if run.ended is not None:
        message.ended.FromMicroseconds(round(run.ended * 1e6))
    for residue in run.residues:
        message.residues.add(surface=residue.surface, code=residue.code, gpu_index=residue.gpu)
    return message


def gpu_messages(gpus: Iterable[Gpu]) -> list[probe_pb2.Gpu]:
    """Return the inventory as it travels."""
    return [
        probe_pb2.Gpu(
            index=gpu.index,
            uuid=gpu.uuid,
            product=gpu.product,
            pci_bus_id=gpu.pci_bus_id,
            memory_mib=gpu.memory_mib,
            default_power_limit_w=gpu.default_power_limit_w,
            driver=gpu.driver,
        )
        for gpu in gpus
    ]


def queue_sample(queue: Spool, sample: Sample) -> None:
    """Queue a sample; tagged ones outlive plain ones when the queue is full."""
    kind = spool.TAGGED if sample.run else spool.SAMPLE
    queue.put(kind, sample.id, sample_message(sample).SerializeToString())


def queue_run(queue: Spool, run: RunRecord) -> None:
    """Queue a run's record; a later phase takes the place of an earlier one that still waits."""
    queue.put(spool.RUN, run.id, run_message(run).SerializeToString())


def queue_gpus(queue: Spool, gpus: Sequence[Gpu]) -> None:
    """Queue the inventory in place of an older one."""
    queue.put(spool.GPUS, "all", probe_pb2.ReportRequest(gpus=gpu_messages(gpus)).SerializeToString())


def queue_kernel(queue: Spool, at: float, text: str) -> None:
    """Queue a line of the kernel log."""
    message = probe_pb2.KernelMessage(text=text)
    message.at.FromMicroseconds(round(at * 1e6))
    queue.put(spool.KERNEL, "", message.SerializeToString())


def request_of(node: str, version: str, records: Sequence[Record]) -> probe_pb2.ReportRequest:
    """Return one request of queued records."""
    request = probe_pb2.ReportRequest(node=node, agent_version=version)
    for record in records:
        if record.kind in {spool.SAMPLE, spool.TAGGED}:
            request.samples.add().ParseFromString(record.body)
        elif record.kind == spool.RUN:
            request.runs.add().ParseFromString(record.body)
        elif record.kind == spool.KERNEL:
            request.kernel_messages.add().ParseFromString(record.body)
        elif record.kind == spool.GPUS:
            request.MergeFromString(record.body)
    return request
