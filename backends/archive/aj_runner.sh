#!/usr/bin/env bash
# bash aj_runner.sh, in the root of the unpacked code: the job's ranks, its setup once on this node, then its command.
#
# Reads, and hides from setup and command
#   AJ_COMMAND             the script to run, in one `bash -e -o pipefail` with /dev/null as its input
#   AJ_SETUP               optional: shell lines that one process of this node runs before any command starts. They have a
#                          shell of their own: what they install and write stays, what they `export` does not
#   AJ_EXPORTS             optional lines `NAME=OTHER` or `NAME=OTHER+NUMBER`: give NAME the value of variable OTHER
#                          (plus NUMBER) unless it has one; for names that only the cluster knows
#   AJ_TERM_GRACE_SECONDS  optional: from TERM to KILL, 15
#   AJ_NODE_FOLDER, AJ_WORK_ROOT, AJ_CODE_ARCHIVE_SHA256  from and for the bootstrap
# Gives  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR, MASTER_PORT. One that has a value keeps it;
#        else it comes from OpenMPI's and Azure Batch's variables, else from AJ_NODES, AJ_PROCESSES_PER_NODE and
#        AJ_NODE_RANK. What cannot be known stays unset, with a word on stderr.
# Exits  with the status of the command (128 + signal when one ended it), or of the setup that failed.
#
# Never filled in: these bytes are part of every archive and must not depend on the job.

# Nothing above or in these lines may need bash, for whoever starts this file with `sh`.
if [ -z "${BASH_VERSION:-}" ]; then
  if command -v bash >/dev/null 2>&1; then exec bash "$0" "$@"; fi
  echo "aj: \`bash\` is missing: take an image that has it, or install it there" >&2
  exit 127
fi

# The job's environment passes through here untouched: variables of our own begin with __aj_.
set +e +u +f
set +o posix

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

# shellcheck disable=SC2329 # called by trap
# SIGNAL STATUS: pass it on, or end where there is nobody to pass it to.
__aj_signal() {
  __aj_caught=$1
  case $__aj_child in
    '') exit "$2" ;;
    starting) ;;
    *) __aj_tell "$1" ;;
  esac
}

# A row `pid parent group start` in __aj_rows for each living process.
__aj_list() {
  local GLOBIGNORE='' __aj_file __aj_row
  __aj_rows=()
  if [[ -r /proc/self/stat ]]; then
    for __aj_file in /proc/[0-9]*/stat; do
      { read -r __aj_row <"$__aj_file"; } 2>/dev/null || continue
      __aj_file=${__aj_file#/proc/}
      # shellcheck disable=SC2086
      set -- ${__aj_row##*) }
      [[ $1 == [ZX] ]] || __aj_rows+=("${__aj_file%/stat} $2 $3 ${20}")
    done
  else
    while read -r __aj_row; do __aj_rows+=("$__aj_row -"); done < <(ps -A -o pid=,ppid=,pgid=)
  fi
}

# The living processes of the command, as `pid:start` words in __aj_family: those in its group, all below them, and those
# an earlier look saw, which may have lost their parents since. Those that left the group also in __aj_strays, by pid.
__aj_look() {
  local __aj_pids=" $__aj_child " __aj_known=" $__aj_family" __aj_before='' __aj_row
  __aj_list
  __aj_family='' __aj_strays=''
  # A child may be listed before its parent: again until nobody joins.
  until [[ $__aj_before == "$__aj_pids" ]]; do
    __aj_before=$__aj_pids
    for __aj_row in "${__aj_rows[@]}"; do
      # shellcheck disable=SC2086
      set -- $__aj_row
      [[ " $__aj_family" != *" $1:$4 "* ]] || continue
      if [[ $3 == "$__aj_child" || $__aj_pids == *" $2 "* || $__aj_known == *" $1:$4 "* ]]; then
        __aj_pids+="$1 " __aj_family+="$1:$4 "
        [[ $3 == "$__aj_child" ]] || __aj_strays+="$1 "
      fi
    done
  done
}

# SIGNAL: to everybody of the command, each once.
__aj_tell() {
  local __aj_stray
  __aj_look
  kill -s "$1" -- "-$__aj_child" 2>/dev/null
  for __aj_stray in $__aj_strays; do kill -s "$1" -- "$__aj_stray" 2>/dev/null; done
}

# SECONDS: wait so long for the command's processes to end; status 1 when some did not.
__aj_settle() {
  local __aj_ticks=$(($1 * 5))
  while __aj_look && [[ -n $__aj_family ]]; do
    ((__aj_ticks-- > 0)) || return 1
    sleep 0.2 2>/dev/null || sleep 1
  done
}

# TEXT: run it as one script, with all that it started ended afterwards; its status in __aj_status.
__aj_run() {
  local __aj_script=$__aj_node/script.$$
  # A file, not an argument, for `ps` shows arguments; not a pipe, for what the script starts would inherit it.
  (umask 077 && printf '%s\n' "$1" >"$__aj_script") || __aj_fail 1 "cannot write in \`$__aj_node\`"
  __aj_child=starting __aj_family=''
  # With job control the script gets a group of its own, and INT keeps its meaning for it.
  set -m
  bash -e -o pipefail -- "$__aj_script" </dev/null &
  __aj_child=$!
  set +m
  [[ -z $__aj_caught ]] || __aj_tell "$__aj_caught"
  # wait also returns when a signal came: only then is its answer not the script's.
  wait "$__aj_child" 2>/dev/null
  __aj_status=$?
  # What writes the last lines of a log (`> >(tee log)`) outlives the script for a moment; a server left behind is told.
  [[ -n $__aj_caught ]] || __aj_settle 2 || __aj_tell TERM
  __aj_settle "$__aj_grace" || __aj_tell KILL
  # Some may have been starting others while they were told.
  __aj_settle 2 || __aj_tell KILL
  wait "$__aj_child" 2>/dev/null
  __aj_status=$?
  __aj_child=''
  rm -f -- "$__aj_script"
}

# shellcheck disable=SC2329 # called by __aj_once
# The setup.
__aj_do_setup() {
  __aj_run "$__aj_setup"
  [[ -z $__aj_caught ]] || __aj_failed setup "$((__aj_status ? __aj_status : 1))" "the setup was stopped by SIG$__aj_caught"
  ((__aj_status == 0)) || __aj_failed setup "$__aj_status" "the setup failed with status $__aj_status"
  __aj_done setup
}

# NAME...: the first that has a value, as a number in __aj_reply; status 1 when none has.
__aj_number() {
  local __aj_name
  for __aj_name; do
    [[ -n ${!__aj_name:-} ]] || continue
    # Not before this may it meet `$(( ))`, which would run what it holds.
    [[ ${!__aj_name} =~ ^[0-9]{1,9}$ ]] || __aj_fail 2 "$__aj_name must be a number, not \`${!__aj_name}\`"
    __aj_reply=$((10#${!__aj_name}))
    return 0
  done
  return 1
}

# NAME VALUE: for the job, unless NAME has a value already.
__aj_give() {
  [[ -n ${!1:-} ]] || export "$1=$2"
}

# Carry out AJ_EXPORTS.
__aj_exports() {
  local __aj_rest=$1 __aj_line __aj_from
  while [[ -n $__aj_rest ]]; do
    __aj_line=${__aj_rest%%$'\n'*}
    [[ $__aj_rest == *$'\n'* ]] && __aj_rest=${__aj_rest#*$'\n'} || __aj_rest=''
    [[ -n $__aj_line ]] || continue
    [[ $__aj_line =~ ^([A-Za-z_][A-Za-z0-9_]*)=([A-Za-z_][A-Za-z0-9_]*)(\+([0-9]{1,9}))?$ ]] ||
      __aj_fail 2 "AJ_EXPORTS holds \`$__aj_line\`, which is not \`NAME=OTHER\` or \`NAME=OTHER+NUMBER\`"
    set -- "${BASH_REMATCH[1]}" "${BASH_REMATCH[4]}"
    __aj_from=${BASH_REMATCH[2]}
    [[ -z ${!1:-} ]] || continue
    [[ -n ${!__aj_from:-} ]] || __aj_fail 2 "$1 comes from $__aj_from, which nobody has set on this node"
    if [[ -n $2 ]]; then
      __aj_number "$__aj_from"
      export "$1=$((__aj_reply + 10#$2))"
    else
      export "$1=${!__aj_from}"
    fi
  done
}

# The variables that distributed programs ask for.
__aj_ranks() {
  local __aj_nodes=1 __aj_local=1 __aj_world __aj_rank='' __aj_place='' __aj_index=''
  __aj_number AJ_NODES && __aj_nodes=$__aj_reply
  __aj_number LOCAL_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE AJ_PROCESSES_PER_NODE && __aj_local=$__aj_reply
  ((__aj_local > 0)) || __aj_fail 2 'a node cannot have 0 processes'
  __aj_world=$((__aj_nodes * __aj_local))
  __aj_number WORLD_SIZE OMPI_COMM_WORLD_SIZE && __aj_world=$__aj_reply
  __aj_number RANK OMPI_COMM_WORLD_RANK && __aj_rank=$__aj_reply
  if __aj_number LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK; then
    __aj_place=$__aj_reply
  elif [[ -n $__aj_rank ]]; then
    __aj_place=$((__aj_rank % __aj_local))
  elif ((__aj_local == 1)); then
    __aj_place=0
  fi
  if __aj_number NODE_RANK AJ_NODE_RANK; then
    __aj_index=$__aj_reply
  elif [[ -n $__aj_rank ]]; then
    # Ranks fill one node after the other, unless the places say that they were dealt out in turn.
    __aj_index=$((__aj_rank / __aj_local))
    ((__aj_rank % __aj_local == __aj_place || __aj_world < __aj_local)) ||
      __aj_index=$((__aj_rank % (__aj_world / __aj_local)))
  elif ((__aj_world == __aj_local)); then
    __aj_index=0
  fi
  [[ -n $__aj_rank || -z $__aj_index || -z $__aj_place ]] || __aj_rank=$((__aj_index * __aj_local + __aj_place))
  __aj_give WORLD_SIZE "$__aj_world"
  __aj_give LOCAL_WORLD_SIZE "$__aj_local"
  __aj_give MASTER_PORT 29500
  if [[ -n ${AZ_BATCH_MASTER_NODE:-} ]]; then
    __aj_give MASTER_ADDR "${AZ_BATCH_MASTER_NODE%:*}"
  elif ((__aj_world == __aj_local)); then
    __aj_give MASTER_ADDR 127.0.0.1
  fi
  [[ -z $__aj_rank ]] || __aj_give RANK "$__aj_rank"
  [[ -z $__aj_place ]] || __aj_give LOCAL_RANK "$__aj_place"
  [[ -z $__aj_index ]] || __aj_give NODE_RANK "$__aj_index"
  for __aj_reply in RANK LOCAL_RANK NODE_RANK MASTER_ADDR; do
    [[ -n ${!__aj_reply:-} ]] || printf 'aj: nothing on this node tells %s: it stays unset\n' "$__aj_reply" >&2
  done
}

__aj_child='' __aj_caught='' __aj_grace=15
trap '__aj_signal TERM 143' TERM
trap '__aj_signal INT 130' INT
trap '__aj_signal HUP 129' HUP
[[ -n ${AJ_COMMAND:-} ]] || __aj_fail 2 'AJ_COMMAND is empty: there is nothing to run'
__aj_exports "${AJ_EXPORTS:-}"
__aj_number AJ_TERM_GRACE_SECONDS && __aj_grace=$__aj_reply
__aj_ranks
__aj_node=${AJ_NODE_FOLDER:-}
[[ -d $__aj_node && -O $__aj_node ]] || __aj_find_node
__aj_command=$AJ_COMMAND
__aj_setup=${AJ_SETUP:-}
unset AJ_COMMAND AJ_SETUP AJ_EXPORTS AJ_TERM_GRACE_SECONDS AJ_NODE_FOLDER AJ_WORK_ROOT AJ_CODE_ARCHIVE_SHA256
[[ -z $__aj_setup ]] || __aj_once setup __aj_do_setup
__aj_run "$__aj_command"
exit "$__aj_status"
