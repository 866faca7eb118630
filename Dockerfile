# Equipoise on CPUs: docker build -t equipoise . && docker run --rm equipoise doctor
FROM python:3.12-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1

# The CPU build of torch, so that no CUDA libraries are downloaded.
COPY constraints.txt /tmp/constraints.txt
RUN pip install "torch==$(sed -n 's/^torch==//p' /tmp/constraints.txt)" \
        --index-url https://download.pytorch.org/whl/cpu

COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install -c /tmp/constraints.txt /src && rm -rf /src /tmp/constraints.txt

# An ordinary user, whose folders for results and data sets can be mounted.
RUN useradd --create-home equipoise && mkdir /data /work && chown equipoise /data /work
USER equipoise
ENV EQUIPOISE_DATA=/data
VOLUME ["/data", "/work"]
WORKDIR /work
ENTRYPOINT ["equipoise"]
CMD ["--help"]
