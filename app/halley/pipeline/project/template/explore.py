"""A first look at the history, in cells: for Jupyter and VS Code, or as it is, by `python explore.py`."""

# %% The history is where spark-pipeline.yml says.
import os
from pathlib import Path

import yaml
from matplotlib import pyplot as plt
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from halley.pipeline import session

settings = yaml.safe_load(Path("spark-pipeline.yml").read_text(encoding="utf-8"))["configuration"]
log = {name: settings.get(f"spark.halley.{name}", "") for name in ("path", "url")}
log["token"] = os.environ.get("HALLEY_TOKEN", "")  # for a server that wants one; it is written nowhere
columns = "channel string, time timestamp, payload string"  # all others are left out, which is faster
events = session.start().read.format("halley").schema(columns).options(**log).load().cache()

# %% Which channels have the most events, and how large those are.
channels = events.groupBy("channel").agg(F.count("*").alias("events"), F.sum(F.octet_length("payload")).alias("bytes"))
busiest = channels.orderBy(F.desc("events"), "channel").limit(8)
busiest.show(truncate=False)

# %% How many events they had, minute by minute.
minute = F.date_trunc("minute", "time").alias("minute")
minutes = events.join(busiest.select("channel"), "channel").groupBy("channel", minute)
rates = minutes.count().toPandas().pivot_table(index="minute", columns="channel", values="count", fill_value=0)
figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
axes.plot(rates.index, rates, marker="o", label=list(rates.columns))
axes.set(title="Events in each minute", xlabel="time (UTC)", ylim=(0, None))
axes.legend()
figure.savefig("minutes.png")

# %% What fills the disk.
sizes = busiest.orderBy("bytes").toPandas()
figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
axes.barh(sizes["channel"], sizes["bytes"])
axes.set(title="Payloads of the busiest channels", xlabel="bytes")
figure.savefig("sizes.png")
