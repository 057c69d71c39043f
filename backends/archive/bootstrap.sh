#!/usr/bin/env bash
# bash bootstrap.sh ARCHIVE: verify the code archive, unpack it once on this node, enter it, run aj_runner.sh.
#
# Reads  AJ_ID                   the job: processes of one node that share it share one tree
#        AJ_CODE_ARCHIVE_SHA256  what ARCHIVE must hash to
#        AJ_WORK_ROOT            optional: where the tree goes, else TMPDIR, else /tmp
# Needs  bash, tar, gzip, sha256sum and the POSIX tools; GNU, BSD and busybox ones will do.
# Exits  127 a tool is missing, 1 no tree could be made; otherwise with the status of the runner.
#
# Never filled in: these bytes are the same for every job, so that they are uploaded once.

# Nothing above or in these lines may need bash, for whoever starts this file with `sh`.
if [ -z "${BASH_VERSION:-}" ]; then
  if command -v bash >/dev/null 2>&1; then exec bash "$0" "$@"; fi
  echo "aj: \`bash\` is missing: take an image that has it, or install it there" >&2
  exit 127
fi

# The job's environment passes through here untouched: variables of our own begin with __aj_, and what would change the
# behaviour of our tools (CDPATH, TAR_OPTIONS, GZIP) is emptied call by call.
set +e +u +f
set +o posix
trap 'exit 143' TERM
trap 'exit 130' INT

# --- node: the same lines in bootstrap.sh and aj_runner.sh, each of which must work alone ---

# STATUS REASON: say why, and end.
__aj_fail() {
  printf 'aj: %s\n' "$2" >&2
  exit "$1"
}

# PID: its start time in __aj_reply; status 1 when it is gone or dead and only not yet waited for.
__aj_started() {
  local __aj_stat
  if [[ -r /proc/self/stat ]]; then
    { read -r __aj_stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    # The second field is a name that may hold blanks and brackets: count from behind its last bracket.
    # shellcheck disable=SC2086
    set -- ${__aj_stat##*) }
    [[ $1 != [ZX] ]] || return 1
    __aj_reply=${20}
  else
    __aj_reply=$(ps -o lstart= -p "$1" 2>/dev/null) || return 1
    __aj_reply=${__aj_reply// /_}
  fi
}

# The private folder of this job on this node in __aj_node. Its name holds what tells two nodes, two containers and two
# starts of one container apart, because a leftover of another must not be taken for ours, and TMPDIR may be shared.
__aj_find_node() {
  local __aj_root __aj_user __aj_boot='' __aj_first=''
  [[ ${AJ_ID:-} =~ ^[A-Za-z0-9_-]+$ ]] || __aj_fail 1 "AJ_ID must be letters, digits, \`_\` and \`-\`, not \`${AJ_ID:-}\`"
  { read -r __aj_boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
  __aj_started 1 && __aj_first=$__aj_reply
  __aj_reply=$(printf '%s|' "$HOSTNAME" "$__aj_boot" "$(readlink /proc/self/ns/pid)" "$__aj_first" | sha256sum)
  for __aj_root in "${AJ_WORK_ROOT:-}" "${TMPDIR:-}" /tmp; do
    [[ $__aj_root == /* ]] || continue
    __aj_user=$__aj_root/aj-$UID
    __aj_node=$__aj_user/$AJ_ID-${__aj_reply:0:12}
    mkdir -p -- "$__aj_root" 2>/dev/null
    mkdir -m 700 -- "$__aj_user" 2>/dev/null
    # Whoever owns this folder decides what we run.
    [[ -d $__aj_user && ! -L $__aj_user && -O $__aj_user ]] || continue
    chmod 700 -- "$__aj_user" 2>/dev/null
    mkdir -m 700 -- "$__aj_node" 2>/dev/null
    [[ -d $__aj_node && ! -L $__aj_node && -O $__aj_node && -w $__aj_node ]] && return 0
  done
  __aj_fail 1 "no folder for the job: neither AJ_WORK_ROOT nor TMPDIR nor /tmp lets user $UID keep a private \`aj-$UID\`"
}

# NAME: take the lock; status 1 when a living process has it. A lock is a link whose text is its owner, `pid:start`, so it
# never exists without an owner. It is never removed: when its owner is dead the next number is free for the one who
# makes it first, so several who see the death at once cannot take the lock from each other.
__aj_claim() {
  local __aj_owner
  __aj_started $$ || __aj_reply=''
  local __aj_me=$$:$__aj_reply
  __aj_turn=1
  until ln -s "$__aj_me" "$__aj_node/$1.lock.$__aj_turn" 2>/dev/null; do
    __aj_owner=$(readlink "$__aj_node/$1.lock.$__aj_turn") || __aj_fail 1 "cannot make a lock in \`$__aj_node\`"
    __aj_started "${__aj_owner%%:*}" && [[ $__aj_reply == "${__aj_owner#*:}" ]] && return 1
    __aj_turn=$((__aj_turn + 1))
  done
}

# NAME FUNCTION: have FUNCTION done by one process of this node, and wait for it as long as that process lives. FUNCTION
# ends with __aj_done or __aj_failed; who finds the latter stops with the same status.
__aj_once() {
  local __aj_status __aj_reason
  while :; do
    [[ ! -e $__aj_node/$1.done ]] || return 0
    if [[ -e $__aj_node/$1.failed ]]; then
      { read -r __aj_status && read -r __aj_reason; } <"$__aj_node/$1.failed"
      __aj_fail "${__aj_status:-1}" "$__aj_reason (on this node; remove \`$__aj_node\` to try again)"
    fi
    if __aj_claim "$1"; then
      # The owner before us may have finished and gone between our look and our claim.
      [[ -e $__aj_node/$1.done || -e $__aj_node/$1.failed ]] || "$2"
    else
      sleep 0.2 2>/dev/null || sleep 1
    fi
  done
}

# shellcheck disable=SC2329 # called by what __aj_once calls
# NAME: what had to be done once is done.
__aj_done() {
  : >"$__aj_node/$1.done" || __aj_fail 1 "cannot write in \`$__aj_node\`"
}

# shellcheck disable=SC2329 # called by what __aj_once calls
# NAME STATUS REASON: it cannot be done; REASON is one line.
__aj_failed() {
  printf '%s\n' "$2" "$3" >"$__aj_node/$1.failed.new" && mv -f -- "$__aj_node/$1.failed.new" "$__aj_node/$1.failed"
  __aj_fail "$2" "$3"
}

# --- end of node ---

# TOOL...: end with 127 and name all that are missing.
__aj_need() {
  local __aj_tool __aj_missing=''
  for __aj_tool; do
    command -v "$__aj_tool" >/dev/null 2>&1 || __aj_missing+=" \`$__aj_tool\`"
  done
  [[ -z $__aj_missing ]] || __aj_fail 127 "missing on this node:$__aj_missing; take an image that has them, or install them there"
}

# ARGUMENT: the archive's path in __aj_archive. Some services hand over the folder around a file, and Singularity
# names the real place in a variable.
__aj_find_archive() {
  for __aj_archive in "$1" "$1/code.tar.gz" "${AZUREML_DATAREFERENCE_aj_code_archive:-}" \
    "${AZUREML_DATAREFERENCE_aj_code_archive:-}/code.tar.gz"; do
    [[ ! -f $__aj_archive ]] || return 0
  done
  __aj_fail 1 "there is no code archive at \`$1\`"
}

# Verify and unpack into a fresh folder, then give it its name. The members' names need no look: the digest says that
# these are the bytes that aj packed, and aj refuses unsafe names when it packs.
__aj_unpack() {
  local __aj_partial=$__aj_node/code.partial.$__aj_turn __aj_errors=$__aj_node/code.errors.$__aj_turn __aj_have __aj_line
  __aj_have=$(sha256sum <"$__aj_archive") || __aj_failed code 1 "cannot read the code archive \`$__aj_archive\`"
  __aj_have=${__aj_have%% *}
  [[ $__aj_have == "$AJ_CODE_ARCHIVE_SHA256" ]] ||
    __aj_failed code 1 "the code archive has SHA-256 $__aj_have, not $AJ_CODE_ARCHIVE_SHA256: it is damaged or another one"
  # -o: the files are ours, not root's. -m: the archive's times are all 0, which zip and make cannot live with.
  # A folder `code` that is not marked done is the half step of an owner who died: mv would move ours into it.
  if (
    umask 022
    set -o pipefail
    mkdir -- "$__aj_partial" || exit
    GZIP='' gzip -dc <"$__aj_archive" | TAR_OPTIONS='' tar -xomf - -C "$__aj_partial" || exit
    [[ -f $__aj_partial/aj_runner.sh ]] || { echo 'it holds no aj_runner.sh' >&2 && exit 1; }
    rm -rf -- "$__aj_node/code" && mv -- "$__aj_partial" "$__aj_node/code"
  ) 2>"$__aj_errors"; then
    rm -rf -- "$__aj_node"/code.partial.*
    __aj_done code
  else
    __aj_line=$(tail -n 3 -- "$__aj_errors" 2>/dev/null)
    rm -rf -- "$__aj_partial"
    __aj_failed code 1 "cannot unpack the code archive into \`$__aj_node\`: ${__aj_line//$'\n'/; }"
  fi
}

[[ $# -eq 1 ]] || __aj_fail 2 'usage: bash bootstrap.sh ARCHIVE'
__aj_need tar gzip sha256sum mkdir mv rm ln readlink chmod sleep tail
[[ ${AJ_CODE_ARCHIVE_SHA256:-} =~ ^[0-9a-f]{64}$ ]] || __aj_fail 1 'AJ_CODE_ARCHIVE_SHA256 must be 64 lower-case hex digits'
__aj_find_archive "$1"
__aj_find_node
__aj_once code __aj_unpack
CDPATH='' cd -- "$__aj_node/code" || __aj_fail 1 "the unpacked code is gone from \`$__aj_node\`"
export AJ_NODE_FOLDER=$__aj_node
exec bash aj_runner.sh
