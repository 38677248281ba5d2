#!/bin/sh
echo "$1" >> sent.txt
