#!/bin/sh
exec barnabas storage "$@"
