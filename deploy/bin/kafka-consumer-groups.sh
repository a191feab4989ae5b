#!/bin/sh
exec barnabas groups "$@"
