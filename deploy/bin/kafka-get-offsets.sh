#!/bin/sh
exec barnabas offsets "$@"
