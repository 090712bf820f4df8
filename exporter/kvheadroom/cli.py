"""The command line: sub-commands and their flags; the work is done elsewhere.

Everything but click is imported inside the commands, so that ``--help`` stays quick.
"""

import io
import sys
from pathlib import Path
from typing import Any, Final

import click

from kvheadroom import __version__, defaults
from kvheadroom.cli_options import ENGINE_OPTIONS, FILE, POLL_OPTIONS, WEB_OPTIONS, options
from kvheadroom.errors import ConfigError, KvHeadroomError
from kvheadroom.redaction import without_credentials

_EXIT_FAILED: Final = 1
_EXIT_USAGE: Final = 2


def run() -> int:
    """Run the command that ``sys.argv`` names and return its exit status.

    0 is fine, 1 failed while running, 2 is a usage or configuration error; the latter two come
    with one line on stderr.
    """
    try:
        status = main.main(standalone_mode=False)
    except click.exceptions.Abort:
        return 128 + 2
    except click.ClickException as error:
        # It repeats what was typed, which may be a URL with a password.
        shown = io.StringIO()
        error.show(shown)
        click.echo(without_credentials(shown.getvalue()), err=True, nl=False)
        return error.exit_code
    except ConfigError as error:
        click.echo(f"kvheadroom: {without_credentials(str(error))}", err=True)
        return _EXIT_USAGE
    except KvHeadroomError as error:
        click.echo(f"kvheadroom: {without_credentials(str(error))}", err=True)
        return _EXIT_FAILED
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough.
        sys.stderr.close()
        return 0
    return status if isinstance(status, int) else 0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="kvheadroom %(version)s")
def main() -> None:
    """Tell how much KV cache is left on every GPU and vLLM engine of this node."""


@main.command()
@options(*ENGINE_OPTIONS, *POLL_OPTIONS, *WEB_OPTIONS)
def serve(**given: Any) -> None:  # noqa: ANN401  (click hands over what the options above declare)
    """Watch this node and serve its headroom to Prometheus."""
    from kvheadroom.daemon import serve_node  # noqa: PLC0415
    from kvheadroom.settings import Flags  # noqa: PLC0415

    serve_node(Flags(**given))


@main.command()
@click.option(
    "--profile",
    type=click.Choice(["card", "rack", "surge"]),
    default="card",
    show_default=True,
    help="card: one 12 GiB card with three services; rack: eight GPUs; surge: one minute in "
    "which an LLM's load rises into preemption and ends.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same traffic.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0.01, max=1000),
    default=1.0,
    show_default=True,
    help="Simulated seconds that pass in one second.",
)
@options(*POLL_OPTIONS, *WEB_OPTIONS)
def demo(profile: str, seed: int, speed: float, **given: Any) -> None:  # noqa: ANN401
    """Serve a simulated node; everything but the GPUs and engines is real."""
    from kvheadroom.daemon import serve_demo  # noqa: PLC0415
    from kvheadroom.settings import Flags  # noqa: PLC0415

    serve_demo(Flags(**given), profile=profile, seed=seed, speed=speed)


@main.command()
@click.option("--url", help="A kvheadroom to ask.  [default: the one on this machine, if any]")
@click.option("--once", is_flag=True, help="Draw once and exit, for scripts.")
@options(*ENGINE_OPTIONS, *POLL_OPTIONS)
def top(url: str | None, once: bool, **given: Any) -> None:  # noqa: ANN401
    """Show the node in the terminal: who holds its memory, and what is left.

    Asks the kvheadroom that is served here; where none is, it watches the node itself.
    """
    from kvheadroom.settings import Flags  # noqa: PLC0415
    from kvheadroom.top_command import TopFlags, run_top  # noqa: PLC0415

    run_top(TopFlags(url, once, Flags(**given)))


@main.command("check-config")
@options(*ENGINE_OPTIONS, *POLL_OPTIONS, *WEB_OPTIONS)
def check_config(**given: Any) -> None:  # noqa: ANN401
    """Read everything `serve` would read, say what it means, and do nothing."""
    from kvheadroom.daemon import describe_settings  # noqa: PLC0415
    from kvheadroom.settings import Flags  # noqa: PLC0415

    for line in describe_settings(Flags(**given)):
        click.echo(line)


@main.command("check-health")
@click.argument("url", default=f"http://127.0.0.1:{defaults.PORT}/-/healthy")
def check_health(url: str) -> int:
    """Exit 0 if the kvheadroom at URL is healthy, 1 if not (for a container's HEALTHCHECK)."""
    from kvheadroom.health_check import check  # noqa: PLC0415

    problem = check(url)
    if problem is None:
        return 0
    click.echo(f"kvheadroom: {problem}", err=True)
    return _EXIT_FAILED


@main.command()
@click.option("--gpu", required=True, help="Its memory (12GiB), or a name: h100, h200/1g.18gb.")
@click.option(
    "--gpus",
    type=click.IntRange(min=1),
    help="How many of them.  [default: as many as tensor, pipeline and data parallelism ask]",
)
@click.option(
    "--serve",
    multiple=True,
    help="A server's command line, 'vllm serve …'; repeatable, in the order of their start.",
)
@click.option(
    "--model-config", "model_configs", multiple=True, help="config.json: PATH or MODEL=PATH."
)
@click.option("--weights", multiple=True, help="Pin the weights: once, or once per server.")
@click.option(
    "--weights-from",
    multiple=True,
    metavar="[MODEL=]PATH",
    help="Where the weights of a class that is not known by name are read: the hub's saved answer "
    "(/api/models/MODEL), an index of shards, a safetensors file or a folder.",
)
@click.option("--activation", multiple=True, help="Pin the activation peak.")
@click.option("--non-torch", multiple=True, help="Pin memory outside the tensor library.")
@click.option("--cuda-graphs", multiple=True, help="Pin what is set aside for graphs.")
@click.option("--context-memory", multiple=True, help="Pin the CUDA context, outside the share.")
@click.option(
    "--startup-log",
    "startup_logs",
    multiple=True,
    help="What an earlier start printed replaces estimates: once, or once per server.",
)
@click.option(
    "--reserved",
    help="What a desktop, another tenant or, with memory shared with the CPU, the system holds.",
)
@click.option("--vllm-version", help="[default: the image's tag, else 0.32.0]")
@click.option("--context", help="Count requests of this many tokens (8K).")
@click.option("--requests", type=click.IntRange(min=1), help="How many should be resident at once.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option("--check", is_flag=True, help="Exit 1 if it does not fit.")
def plan(as_json: bool, check: bool, **given: Any) -> int:  # noqa: ANN401
    """Say whether servers fit on one GPU, or on several alike, what binds, and what to change."""
    import json  # noqa: PLC0415

    from kvheadroom.plan import plan_text  # noqa: PLC0415
    from kvheadroom.plan_command import PlanFlags, plan_from  # noqa: PLC0415

    made = plan_from(PlanFlags(**given))
    if as_json:
        click.echo(json.dumps(plan_text.as_record(made)))
    else:
        click.echo(plan_text.as_text(made), nl=False)
    return _EXIT_FAILED if check and not made.fits else 0


@main.command()
@click.option("--engine", help="Its id, as in the engine label.  [default: every one]")
@click.option("--context", required=True, help="Tokens of one request, prompt and answer (8K).")
@click.option(
    "--requests",
    type=click.IntRange(1, 1_000_000),
    default=1,
    show_default=True,
    help="How many more of them.",
)
@click.option(
    "--url",
    default=f"http://127.0.0.1:{defaults.PORT}",
    show_default=True,
    help="The kvheadroom to ask.",
)
@click.option(
    "--ca-file", type=FILE, help="Certificates to check its own against.  [default: the system's]"
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option("--check", is_flag=True, help="Exit 1 unless every engine asked about takes them.")
def fit(as_json: bool, check: bool, **given: Any) -> int:  # noqa: ANN401
    """Say whether an engine can take that many more requests now, and after a restart.

    None that runs is preempted for them, and none of them waits: each gets room to its full
    length. What a restart with one setting changed would give is computed from the engine's own
    pool: an fp8 cache, a larger share where the GPU has memory that nobody claims, another longest
    request.
    """
    from kvheadroom import fit_command  # noqa: PLC0415
    from kvheadroom.faces.document import encode  # noqa: PLC0415

    fits = fit_command.ask_fit(fit_command.FitFlags(**given))
    click.echo(encode(fits) if as_json else fit_command.as_text(fits), nl=as_json)
    return _EXIT_FAILED if check and not fit_command.all_fit(fits) else 0


@main.command()
@click.option("--memory", required=True, help="What the runtime can use (107.52GiB).")
@click.option("--weights", required=True, help="The model's file, 42.52GB or 39.60GiB.")
@click.option("--other", default="2.8GiB", show_default=True, help="Everything else.")
@click.option(
    "--model-config", type=click.Path(path_type=Path), required=True, help="The config.json."
)
@click.option("--context", required=True, help="Tokens of one request (8K).")
@click.option("--kv-dtype", default="f16", show_default=True, help="f16 or q8_0.")
def slots(**given: Any) -> None:  # noqa: ANN401
    """Say how many requests fit beside the weights, for llama.cpp and its like.

    Slots are memory, not a promise of latency. Where the weights alone do not fit, llama.cpp
    offloads a part and runs slowly without saying so.
    """
    from kvheadroom.plan_command import SlotFlags, slots_from  # noqa: PLC0415
    from kvheadroom.units import format_bytes  # noqa: PLC0415

    found, left, each = slots_from(SlotFlags(**given))
    if left <= 0:
        click.echo(
            f"the weights do not fit: {format_bytes(-left)} short; a partial offload is slow"
        )
        return
    click.echo(
        f"{int(found)} slots ({found:.1f}): {format_bytes(left)} / {format_bytes(each)} each"
    )


@main.command("explain-log")
@click.argument("log", metavar="FILE|-")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def explain_log(log: str, as_json: bool) -> None:
    """Say what a vLLM startup log holds: did it start, why not, what takes the memory."""
    from kvheadroom.plan import explain_log as plan  # noqa: PLC0415

    explanation = plan.explain_file(log)
    click.echo(plan.as_json(explanation) if as_json else plan.as_text(explanation), nl=False)


@main.command()
@click.option(
    "--batch",
    required=True,
    metavar="FILE|-",
    help="Questions, one JSON object a line: config or path, args, available_bytes, vllm_version, "
    "gpu, weights_from (as in plan: a path, or the JSON itself). The answers come in the same "
    "order.",
)
def capacity(batch: str) -> None:
    """Say what vLLM would allocate: blocks, tokens, concurrency, weights, or why it refuses.

    A line that cannot be answered gets an error in its place and the rest go on, with exit 0.
    """
    from kvheadroom.plan.batch import answer_file  # noqa: PLC0415
    from kvheadroom.plan_command import read_yaml  # noqa: PLC0415

    for line in answer_file(batch, read_yaml=read_yaml):
        click.echo(line)


@main.command("metrics-doc")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["markdown", "surface"]),
    default="markdown",
    help="markdown for people; surface is the frozen list of names and labels.",
)
def metrics_doc(layout: str) -> None:
    """Print every metric, from the catalogue the exporter itself uses."""
    from kvheadroom.faces import metrics_doc as doc  # noqa: PLC0415

    click.echo(doc.markdown() if layout == "markdown" else doc.surface(), nl=False)
