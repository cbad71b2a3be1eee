# The Java and the Python that Spark runs on, on the machine where this project was written.
JAVA_HOME=${java}
PYSPARK_PYTHON=${python}
SPARK_LOCAL_IP=127.0.0.1
