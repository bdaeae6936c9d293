"""``edgeinfer serve``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.backends.process.words import native_words
from edgeinfer.bundle.consent import allowed
from edgeinfer.cli.declared import declared
from edgeinfer.cli.emit import KINDS, EmittedProgram, default_image
from edgeinfer.cli.emit import emit as written
from edgeinfer.cli.output import Output, output_options
from edgeinfer.cli.trust import trust_options
from edgeinfer.errors import UsageError
from edgeinfer.installed import CONVERTER, RUNTIME, package
from edgeinfer.runtime.options import SessionOptions

if TYPE_CHECKING:
    from edgeinfer.runtime.serve.options import ServeOptions


@click.command()
@click.argument("bundles", nargs=-1, metavar="[NAME=]BUNDLE...")
@click.option(
    "--pipeline",
    "pipelines",
    multiple=True,
    metavar="NAME=BUNDLE,BUNDLE",
    help="Bundles that work together; may be repeated.",
)
@click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="NAME=URL[#MODEL]",
    help="A model of another server with OpenAI's API; may be repeated.",
)
@click.option(
    "--fallback",
    "fallbacks",
    multiple=True,
    metavar="NAME=OTHER[:COUNT]",
    help="OTHER answers while NAME cannot, or COUNT requests wait for it; may be repeated.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="TCP port; 0 takes any.",
)
@click.option(
    "--grpc-port", type=click.IntRange(1, 65535), help="Speak gRPC too; Triton's is 8001."
)
@click.option("--keys", metavar="FILE", help="Keys that let requests in, one a line.")
@click.option("--insecure", is_flag=True, help="Let other machines in without a key.")
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="Number of engine threads; default all cores."
)
@click.option(
    "--memory-mb", type=click.FloatRange(1), help="Memory limit of all tensor models together."
)
@click.option(
    "--batch",
    default=16,
    show_default=True,
    type=click.IntRange(1),
    help="Largest batch of requests.",
)
@click.option(
    "--queue",
    default=512,
    show_default=True,
    type=click.IntRange(1),
    help="Requests that may wait for a model.",
)
@click.option(
    "--max-body-mb",
    default=64,
    show_default=True,
    type=click.IntRange(1),
    help="Size limit of a request body.",
)
@click.option(
    "--max-json-mb",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    help="Size limit of JSON in a request.",
)
@click.option(
    "--max-requests-mb",
    default=1024,
    show_default=True,
    type=click.IntRange(1),
    help="Memory limit of all requests together.",
)
@click.option(
    "--answer-cache-mb",
    "answers_mb",
    default=0.0,
    type=click.FloatRange(0),
    help="Keep answers of tensor models for the same inputs.",
)
@click.option(
    "--wait-s", type=click.FloatRange(0, min_open=True), help="Longest time a request may wait."
)
@click.option(
    "--drain-s",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Time to finish requests when the server stops.",
)
@click.option("--isolate", is_flag=True, help="Run engines in processes of their own.")
@declared(SessionOptions, ("allow",))
@click.option(
    "--run-timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop a run of an isolated engine that takes longer.",
)
@click.option(
    "--log", "logs", is_flag=True, help="Write a line of JSON to stderr for each request."
)
@click.option(
    "--cors", multiple=True, metavar="ORIGIN", help="Origin whose web pages may read answers."
)
@click.option(
    "--shared-memory",
    default="",
    metavar="PREFIX",
    help="Take tensors of this machine in shared memory of names that begin so.",
)
@click.option("--mdns", is_flag=True, help="Tell the local network where this server is.")
@click.option("--certificate", metavar="PEM", help="Serve TLS with it and --private-key.")
@click.option("--private-key", metavar="PEM", help="Private key of --certificate.")
@click.option(
    "--sequences",
    default=16,
    show_default=True,
    type=click.IntRange(1),
    help="Number of texts generated at once.",
)
@click.option(
    "--context", type=click.IntRange(1), metavar="TOKENS", help="Longest text, with its prompt."
)
@click.option(
    "--cache-mb", type=click.IntRange(1), help="Memory of the KV cache of a language model."
)
@click.option(
    "--disk", metavar="FOLDER", help="Keep prefixes of prompts on disk for the next start."
)
@click.option("--ray", is_flag=True, help="Serve on Ray: a cluster, or several processes here.")
@click.option(
    "--replicas", default="1", metavar="COUNT|LEAST:MOST", help="Number of replicas for --ray."
)
@click.option(
    "--emit",
    type=click.Choice(KINDS),
    help="Print a file that starts this server elsewhere, and start none.",
)
@click.option(
    "--image", default=default_image(), show_default=True, help="Container image for --emit."
)
@trust_options()
@output_options
def serve(
    bundles: tuple[str, ...],
    pipelines: tuple[str, ...],
    upstreams: tuple[str, ...],
    fallbacks: tuple[str, ...],
    host: str,
    port: int,
    grpc_port: int | None,
    keys: str | None,
    insecure: bool,
    threads: int | None,
    memory_mb: float | None,
    batch: int,
    queue: int,
    max_body_mb: int,
    max_json_mb: int,
    max_requests_mb: int,
    answers_mb: float,
    wait_s: float | None,
    drain_s: float,
    isolate: bool,
    run_timeout: float | None,
    allow: tuple[str, ...],
    logs: bool,
    cors: tuple[str, ...],
    shared_memory: str,
    mdns: bool,
    certificate: str | None,
    private_key: str | None,
    sequences: int,
    context: int | None,
    cache_mb: int | None,
    disk: str | None,
    ray: bool,
    replicas: str,
    emit: str | None,
    image: str,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Serve BUNDLES over HTTP and gRPC: tensors and language models.

    Clients of Triton and KServe (Open Inference Protocol v2, binary tensors) and of OpenAI (chat
    completions, completions, embeddings) speak to it; /v1/pipelines takes images, recordings and
    texts; /metrics is for Prometheus. Only this machine reaches it
    unless --host says otherwise, which needs --keys or --insecure. Ctrl-C ends it.
    """
    from edgeinfer.runtime.serve.options import RequestLimits, ServeOptions, keys_of
    from edgeinfer.runtime.serve.run import check_installed
    from edgeinfer.runtime.serve.run import serve as run

    if not (bundles or pipelines or upstreams):
        raise UsageError("no BUNDLE given")
    check_installed(grpc=grpc_port is not None)
    options = ServeOptions(
        host=host,
        port=port,
        grpc_port=grpc_port,
        keys=keys_of(keys),
        insecure=insecure,
        threads=threads,
        memory_mb=memory_mb,
        batch=batch,
        isolate=isolate or run_timeout is not None,
        run_timeout_s=run_timeout,
        allow=tuple(sorted(allowed(allow))) if allow else None,
        limits=RequestLimits(
            body_bytes=max_body_mb << 20,
            json_bytes=max_json_mb << 20,
            memory_bytes=max_requests_mb << 20,
            queue=queue,
            wait_s=wait_s,
            drain_s=drain_s,
        ),
        cors=cors,
        certificate=Path(certificate) if certificate else None,
        private_key=Path(private_key) if private_key else None,
        mdns=mdns,
        upstreams=upstreams,
        fallbacks=fallbacks,
        answers_mb=answers_mb,
        shared_memory=shared_memory,
    )
    if emit is not None:
        asked = EmittedProgram(click.get_current_context(), host, port, grpc_port, drain_s, image)
        click.echo(written(emit, asked))
        return
    if logs:
        _log_requests()
    text = {
        "sequences": sequences,
        "context": context or 0,
        "cache_mb": cache_mb or 0,
        "disk": disk,
        "threads": threads or 0,
    }
    more: dict[str, Any] = {"trust": trust, "text": text, "pipelines": pipelines}
    more["started"] = lambda url: out.remark(f"serving at {url}")
    if ray:
        _serve_on_ray(bundles, options, replicas, float(threads or 1), more)
    else:
        with native_words():
            run(bundles, options, **more)


def _serve_on_ray(
    bundles: tuple[str, ...],
    options: ServeOptions,
    replicas: str,
    cpus: float,
    more: dict[str, Any],
) -> None:
    if package() == RUNTIME:
        raise UsageError(f"--ray: {RUNTIME} is for devices; nodes of a cluster have {CONVERTER}")
    from edgeinfer.runtime.serve.cluster import Replicas, read_replicas, serve_cluster

    serve_cluster(bundles, options, Replicas(*read_replicas(replicas), cpus), **more)


def _log_requests() -> None:
    """Write lines; what they do not tell is not found out for each."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # By logging's own guide to its optimisation: no search for the line that logs, nor the task.
    for name, off in (("logAsyncioTasks", False), ("_srcfile", None)):
        setattr(logging, name, off)
    from edgeinfer.runtime.serve.requestlog import LOG, JsonLines

    LOG.addHandler(JsonLines())
    warnings = JsonLines()
    warnings.setLevel(logging.WARNING)
    # Such as a model that could not be loaded, which else is reported when the server ends.
    logging.getLogger("edgeinfer").addHandler(warnings)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
