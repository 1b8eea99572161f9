"""A short run of Spark, for the classes that its JVM loads.

``python -m transporter.spark.load_classes FOLDER``, with scratch files in that folder. A JVM that
writes an archive of its classes does so when it ends in order.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkConf, SparkContext

from transporter.spark.host import configuration, socket_folder
from transporter.spark.jvm import start_jvm
from transporter.spark.spark_user import name_login_user


def main() -> None:
    """Run a job as workers have it, and end the JVM in order."""
    scratch = sys.argv[1]
    with socket_folder(scratch) as sockets:
        settings = configuration("local", {}, scratch, sockets)
        gateway = start_jvm(settings, Path(scratch))
        name_login_user(gateway.jvm)
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        context = SparkContext(conf=conf, gateway=gateway)
        context.parallelize(range(10), 2).map(str).collect()
        context.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
