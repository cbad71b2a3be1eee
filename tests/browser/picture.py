"""Renew the README's picture: the console's overview while `halley demo` runs.

    python tests/browser/picture.py [FILE]

It takes two minutes, until the charts are full. The pipeline is off, since Spark needs all of a small machine when it
starts; and nothing else should run on the machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.programs import CHROMIUM_FLAGS, require_browser

PICTURE = Path(__file__).parents[2] / ".github" / "console.png"
CHARTS_S = 125  # until the charts are full
SIZE = {"width": 1280, "height": 800}


def main(file: Path) -> None:
    """Run the demo and write the picture to `file`."""
    command = [sys.executable, "-m", "halley", "demo", "--port", "0", "--nt4-port", "0", "--pipeline", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo, sync_playwright() as playwright:
        try:
            url = re.search(r"http://\S+", demo.stdout.readline())[0]
            browser = playwright.chromium.launch(executable_path=require_browser(), args=CHROMIUM_FLAGS)
            page = browser.new_page(viewport=SIZE, color_scheme="light")
            page.goto(url)
            page.wait_for_timeout(CHARTS_S * 1_000)
            page.screenshot(path=file)
            browser.close()
        finally:
            demo.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
