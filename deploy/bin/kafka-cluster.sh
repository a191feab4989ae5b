#!/bin/sh
exec barnabas cluster "$@"
