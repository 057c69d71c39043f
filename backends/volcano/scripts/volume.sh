#!/bin/sh
# sh -c THIS aj-volume check|store FOLDER ID SHA256/NAME...: code on a shared volume, in the pod that has it mounted.
#
# check  prints `have SHA256/NAME` or `miss SHA256/NAME` for each file, by its bytes
# store  takes the files from a tar on its input, verifies each, and gives it its name in one step
# Needs  sh, tar, sha256sum, mkdir, mv, rm; GNU or busybox ones will do

set -u
umask 022
what=$1 folder=$2 id=$3
shift 3

fail() {
  printf 'aj: %s\n' "$1" >&2
  exit 1
}

is() {
  have=$(sha256sum 2>/dev/null <"$1") && [ "${have%% *}" = "${2%%/*}" ]
}

for tool in tar sha256sum mkdir mv rm; do
  command -v "$tool" >/dev/null 2>&1 || fail "\`$tool\` is missing in the helper's image: name another by _extra.code_upload.helper_image"
done
case $what in
  check)
    for file; do
      if [ -f "$folder/$file" ] && is "$folder/$file" "$file"; then echo "have $file"; else echo "miss $file"; fi
    done
    ;;
  store)
    partial=$folder/.partial-$id
    trap 'rm -rf "$partial"' EXIT
    trap 'exit 1' HUP INT TERM
    mkdir -p "$partial" || fail "cannot write to the volume"
    tar -xf - -C "$partial" || fail "the files did not arrive whole, or the volume is full"
    for file; do
      is "$partial/$file" "$file" || fail "$file did not arrive as it was sent"
    done
    for file; do
      { mkdir -p "$folder/${file%/*}" && mv -f "$partial/$file" "$folder/$file"; } || fail "cannot write $file to the volume"
      echo "have $file"
    done
    ;;
esac
