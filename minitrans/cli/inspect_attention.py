"""``scripts/inspect_attention.py``: the attention maps of one sentence, as pictures, numbers and words."""

from pathlib import Path
from typing import TYPE_CHECKING

from minitrans.cli.checkpoints import run_folder
from minitrans.cli.compose import Composed
from minitrans.cli.main import run_main
from minitrans.cli.output_folder import MAPS, choose, differing, make, texts_name, write_json
from minitrans.cli.translate import load_translator
from minitrans.config import InspectConfig, SearchConfig, TranslateConfig
from minitrans.errors import UserError

if TYPE_CHECKING:
    from minitrans.checkpoint import Loaded


def main() -> int:
    """The command. Returns its exit status."""
    return run_main(inspect_attention, "inspect_attention", InspectConfig)


def inspect_attention(composed: Composed[InspectConfig]) -> None:
    """Translate the text (or take the given target), draw and save the maps, and print what the heads do.

    Raises
    ------
    UserError
        A blank text or target, a side longer than learned positions can place, an output_dir that is a file
        or holds anything else than these maps, or a checkpoint that cannot be read. Nothing is written then.
    """
    config = composed.config
    if not config.text.strip():
        raise UserError('text= is empty; give the source sentence, such as text="a dog runs"')
    if config.target and not config.target.strip():
        raise UserError("target= is blank; give a translation, or leave it out for the model's own")

    from minitrans.analysis.attention import describe, sentence_maps
    from minitrans.analysis.drawing import draw_maps

    settings = TranslateConfig(checkpoint=config.checkpoint, accelerator="cpu", search=config.search)
    loaded, translator = load_translator(settings, composed.typed)
    target = config.target or translator.translate([config.text], name="text=")[0].text
    maps = sentence_maps(loaded.model, loaded.tokenizers, config.text, target)
    folder = _folder(config, loaded, translator.search, target)
    maps.save(folder / "maps.npz")
    pictures = draw_maps(maps, folder)

    print(f"checkpoint  {loaded.path} (update {loaded.progress.update:,})")
    print(f"source      {config.text}")
    print(f"target      {target}")
    print()
    print(describe(maps))
    print()
    for path in [*pictures, folder / "maps.npz", folder / MAPS.record]:
        print(path)


def _folder(config: InspectConfig, loaded: "Loaded", search: SearchConfig, target: str) -> Path:
    """Make the folder of this sentence's maps, and the record of what they are of.

    Its name ends in the target that was given, or else in the search that found one.
    """
    from minitrans.data.cache import hash_file

    facts = {"text": config.text, "target": target, "checkpoint_sha256": hash_file(loaded.path)}
    if config.target:
        name = f"{loaded.path.stem}-{texts_name(config.text, config.target)}"
    else:
        own = loaded.experiment.search
        name = f"{loaded.path.stem}-{texts_name(config.text)}-{differing(own, search)}"
    update = loaded.progress.update
    folder = choose(MAPS, config.output_dir, run_folder(loaded.path), name, update, facts)
    make(folder)
    write_json(folder / MAPS.record, {"checkpoint": str(loaded.path), "update": update, **facts})
    return folder
