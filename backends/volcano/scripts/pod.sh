#!/usr/bin/env bash
# bash -c THIS aj-pod PROCESSES SOURCE BOOTSTRAP_SHA256 PATIENCE CREDENTIALS [NAME=FOLDER]...
#
# What every pod does: find the master, mount the storages, get code and bootstrap, start PROCESSES bootstraps.
#
# SOURCE  `volume:FOLDER` where aj has put both under their SHA-256, or `blob:RETRIES` to fetch them by HTTPS from the
#         addresses in CREDENTIALS/code.url and CREDENTIALS/bootstrap.url
# PATIENCE  seconds for the name of the master to be known
# NAME=FOLDER  a storage, mounted by blobfuse2 with the configuration CREDENTIALS/NAME.yaml
# Reads   AJ_CODE_ARCHIVE_SHA256, AJ_NODES, AJ_WORK_ROOT; VC_MASTER_HOSTS, which the cluster sets
# Needs   bash, tar, gzip, sha256sum; GNU or busybox ones will do. For blob also curl, GNU wget or python3
# Exits   127 a tool is missing, 1 the pod cannot be made ready, 143 it was told to end; otherwise with the status of the
#         processes

set +e +u
set -o pipefail

__aj_fail() {
  printf 'aj: %s\n' "$2" >&2
  exit "$1"
}

__aj_need() {
  local __aj_tool __aj_missing=''
  for __aj_tool; do
    command -v "$__aj_tool" >/dev/null 2>&1 || __aj_missing+=" \`$__aj_tool\`"
  done
  [[ -z $__aj_missing ]] || __aj_fail 127 "missing in this image:$__aj_missing; take one that has them"
}

# NAME: whether it has an address by now; 2 when nothing here can tell.
__aj_resolve() {
  if command -v getent >/dev/null 2>&1; then
    getent hosts "$1" >/dev/null 2>&1 || return 1
  elif command -v python3 >/dev/null 2>&1; then
    python3 -c 'import socket, sys; socket.getaddrinfo(sys.argv[1], None)' "$1" 2>/dev/null || return 1
  elif command -v nslookup >/dev/null 2>&1; then
    nslookup "$1" >/dev/null 2>&1 || return 1
  else
    return 2
  fi
}

# SECONDS: pods of a gang start together, but their names reach the DNS one by one.
__aj_await_master() {
  local __aj_deadline=$((SECONDS + $1)) __aj_told=''
  [[ ${AJ_NODES:-1} -gt 1 ]] || return 0
  [[ -n ${VC_MASTER_HOSTS:-} ]] || __aj_fail 1 'the cluster has not set VC_MASTER_HOSTS: its svc plugin is missing'
  while :; do
    __aj_resolve "$VC_MASTER_HOSTS"
    case $? in
      0) return 0 ;;
      2) printf 'aj: nothing here can look up %s: not waiting for it\n' "$VC_MASTER_HOSTS" >&2 && return 0 ;;
    esac
    ((SECONDS < __aj_deadline)) || __aj_fail 1 "\`$VC_MASTER_HOSTS\`, the master, has had no address for $1 s"
    [[ -n $__aj_told ]] || printf 'aj: waiting for the address of %s\n' "$VC_MASTER_HOSTS" >&2
    __aj_told=yes
    sleep 1
  done
}

# NAME=FOLDER...: the pod is privileged where there are any, as FUSE wants.
__aj_mount() {
  local __aj_pair __aj_name __aj_folder
  [[ $# -gt 0 ]] || return 0
  if ! command -v blobfuse2 >/dev/null 2>&1 && command -v apt-get >/dev/null 2>&1; then
    echo 'aj: blobfuse2 is missing: trying to install it' >&2
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y blobfuse2 fuse3; } >&2
  fi
  command -v blobfuse2 >/dev/null 2>&1 ||
    __aj_fail 127 "missing in this image: \`blobfuse2\`, which mounts the storages; take one that has it, or whose apt-get knows it"
  for __aj_pair; do
    __aj_name=${__aj_pair%%=*} __aj_folder=${__aj_pair#*=}
    mkdir -p -- "$__aj_folder" || __aj_fail 1 "cannot make the folder \`$__aj_folder\` of storage \`$__aj_name\`"
    blobfuse2 mount "$__aj_folder" --config-file="$__aj_credentials/$__aj_name.yaml" >&2 ||
      __aj_fail 1 "cannot mount storage \`$__aj_name\` at \`$__aj_folder\`"
  done
}

# NAME FILE: one try; the address has a secret in it, so it goes through a pipe and no tool may print it.
__aj_get() {
  local __aj_url
  __aj_url=$(<"$__aj_credentials/$1.url") || return
  if command -v curl >/dev/null 2>&1; then
    printf 'url = "%s"\n' "$__aj_url" | curl -fsS --connect-timeout 30 --speed-limit 1 --speed-time 60 -o "$2" -K -
  elif [[ $(wget --help 2>&1) == *--input-file* ]]; then
    printf '%s\n' "$__aj_url" | wget -q -T 60 -t 1 -O "$2" -i -
  elif command -v python3 >/dev/null 2>&1; then
    printf '%s' "$__aj_url" | python3 -c '
import shutil, sys, urllib.request
with urllib.request.urlopen(sys.stdin.read(), timeout=60) as answer, open(sys.argv[1], "wb") as file:
    shutil.copyfileobj(answer, file)' "$2"
  else
    __aj_fail 127 "missing in this image: \`curl\`, GNU \`wget\` or \`python3\`, one of which fetches the code"
  fi
}

# FILE SHA256: whether it has these bytes.
__aj_is() {
  local __aj_have
  __aj_have=$(sha256sum <"$1" 2>/dev/null) && [[ ${__aj_have%% *} == "$2" ]]
}

# RETRIES NAME FILE SHA256
__aj_fetch() {
  local __aj_try
  for ((__aj_try = 0; __aj_try <= $1; __aj_try++)); do
    ((__aj_try == 0)) || sleep $((__aj_try < 6 ? __aj_try * 2 : 12))
    __aj_get "$2" "$3" && __aj_is "$3" "$4" && return 0
    printf 'aj: try %d of %d to fetch %s failed\n' $((__aj_try + 1)) $(($1 + 1)) "$2" >&2
    rm -f -- "$3"
  done
  __aj_fail 1 "cannot fetch the $2: it is not at its address, the access has expired, or the network is down"
}

# SOURCE BOOTSTRAP_SHA256: code and bootstrap in __aj_archive and __aj_bootstrap.
__aj_find() {
  local __aj_folder=${1#*:} __aj_work=${AJ_WORK_ROOT:-/tmp}
  if [[ $1 == blob:* ]]; then
    __aj_archive=$__aj_work/code.tar.gz __aj_bootstrap=$__aj_work/bootstrap.sh
    __aj_fetch "$__aj_folder" bootstrap "$__aj_bootstrap" "$2"
    __aj_fetch "$__aj_folder" code "$__aj_archive" "$AJ_CODE_ARCHIVE_SHA256"
    return
  fi
  __aj_archive=$__aj_folder/$AJ_CODE_ARCHIVE_SHA256/code.tar.gz __aj_bootstrap=$__aj_folder/$2/bootstrap.sh
  [[ -f $__aj_archive ]] || __aj_fail 1 "the code is not on the volume: \`$__aj_archive\` is missing"
  __aj_is "$__aj_bootstrap" "$2" || __aj_fail 1 "\`$__aj_bootstrap\` on the volume is missing or damaged"
}

# PROCESSES: the first that fails ends the others and gives the status. A pod that is told to end ends with 143 whatever
# its processes make of it: by that Volcano knows an eviction from a failure.
__aj_start() {
  local __aj_place __aj_status=0 __aj_last __aj_left=$1
  trap '__aj_caught=TERM __aj_told=143; kill -TERM $(jobs -p) 2>/dev/null' TERM
  trap '__aj_caught=INT; kill -INT $(jobs -p) 2>/dev/null' INT
  for ((__aj_place = 0; __aj_place < $1; __aj_place++)); do
    LOCAL_RANK=$__aj_place LOCAL_WORLD_SIZE=$1 bash "$__aj_bootstrap" "$__aj_archive" &
  done
  # Told before all were started.
  # shellcheck disable=SC2046
  [[ -z $__aj_told ]] || kill -TERM $(jobs -p) 2>/dev/null
  while ((__aj_left > 0)); do
    __aj_caught=''
    wait -n
    __aj_last=$?
    [[ -z $__aj_caught ]] || continue
    ((__aj_left--))
    # 127: none is left to wait for, one having ended while a signal was dealt with.
    if ((__aj_last != 127 && __aj_last != 0 && __aj_status == 0)); then
      __aj_status=$__aj_last
      # shellcheck disable=SC2046
      kill -TERM $(jobs -pr) 2>/dev/null
    fi
  done
  [[ -z $__aj_told ]] || echo 'aj: this pod was told to end (SIGTERM)' >&2
  exit "${__aj_told:-$__aj_status}"
}

# The first process of a container ignores what it has no trap for.
trap 'exit 143' TERM
trap 'exit 130' INT
__aj_told='' __aj_credentials=$5
__aj_need tar gzip sha256sum mkdir sleep rm
__aj_await_master "$4"
__aj_mount "${@:6}"
__aj_find "$2" "$3"
__aj_start "$1"
