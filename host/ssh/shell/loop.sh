# loop SHELL PATH: the remote end of a Shell: one request after another from standard
# input. It reads exactly the bytes that are its own, so that what follows stays
# in the pipe: the shell's read takes one byte at a time, and dd with fullblock no
# more than it should (busybox's head -c reads ahead).
#
# A request is one line
#	NONCE HOW SECONDS STDIN ID LENGTH 'ARG' 'ARG'...
# then LENGTH bytes of script text, to be known as ID from now on (0: it is
# known), then STDIN bytes for the script. An answer is, on both streams,
#	NONCEb\n output NONCEe\n
# between them NONCExCODE\n behind all that the script wrote itself, and on standard
# output NONCEpGROUP\n when the script has begun. The nonce is a variable of this
# shell only: no script can imitate a mark. (One that runs inside loses it first.)
#
# HOW is foreign, direct or inside. Inside, the script is no process of its own but a
# subshell, which costs the machine a tenth; its input is in $input, and STDIN is
# "-" where that is the first argument. Nothing here ends it at its limit, unless it
# computes all the while: GROUP is that of this shell.

sh=$1 path=$2
unset tool nonce how limit stdin id len args script text input code pid group home stat ENV CDPATH
PATH=$path LC_ALL=C
export PATH LC_ALL
unset LANGUAGE
umask 022
cd /
nl='
'
IFS=' 	'$nl
# A program of that name may be procps 4.0.2's, which kills everybody instead of a group.
case $(command -v kill) in
kill) ;;
*)
	echo "the shell has no kill of its own" >&2
	exit 127
	;;
esac
for tool in cat dd timeout; do
	command -v "$tool" >/dev/null || {
		echo "$tool is not to be found in PATH=$PATH" >&2
		exit 127
	}
done
exec 5>&1 6>&2 >/dev/null 2>/dev/null

# The timeout of coreutils makes a process group of its own and kills all of it;
# busybox's kills one process, so the group is made here and killed below.
case $(timeout --help 2>&1) in
*BusyBox*) group=setsid ;;
*) group= ;;
esac

# The process group of all that runs inside. It is ours, or sudo's that started us;
# any other is not for us to end.
home=
if read -r stat </proc/$$/stat; then
	set -- ${stat##*) }
	case $3 in
	0) ;; # of another PID namespace
	"$$" | "$2") home=$3 ;;
	esac
fi

# take N copies the next N bytes of standard input.
take() {
	if [ "$1" -gt 1048576 ]; then
		dd bs=1048576 count=$(($1 / 1048576)) iflag=fullblock
		set -- $(($1 % 1048576))
		[ "$1" -gt 0 ] || return 0
	fi
	dd bs="$1" count=1 iflag=fullblock
}

# child runs the script: its streams are 4, 8 and 7. It sees none of ours.
child() {
	$group timeout -s KILL "$limit" "$sh" -c "$script" sh "$@" <&4 >&8 2>&7 4<&- 5>&- 6>&- 7>&- 8>&- &
	pid=$!
	printf '%sp%s\n' "$nonce" "$pid" >&5
	wait "$pid"
	code=$?
	kill -KILL "-$pid"
	# By the way of the output, and so behind all of it.
	printf '%sx%s\n' "$nonce" "$code" >&8
	printf '%sx%s\n' "$nonce" "$code" >&7
}

# fed gives the script its standard input, and takes what it left unread: up to a
# MiB take has read all before it writes any.
fed() {
	if [ "$stdin" -eq 0 ]; then
		child "$@" 4</dev/null
	else
		take "$stdin" | {
			child "$@" 4<&0
			[ "$stdin" -le 1048576 ] || cat >/dev/null
		}
	fi
}

# inside runs the script in a subshell.
inside() {
	case $stdin in
	-)
		input=$1
		shift
		;;
	0) input= ;;
	*) input=$(take "$stdin") ;;
	esac
	if [ -n "$home" ]; then
		printf '%sb\n%sp%s\n' "$nonce" "$nonce" "$home" >&5
	else
		printf '%sb\n' "$nonce" >&5
	fi
	printf '%sb\n' "$nonce" >&6
	(
		unset nonce
		# One that finds more than it was made for ends itself, also where the link has
		# gone: it may use the processor for no longer than its limit, and 1 GiB.
		{
			ulimit -S -t "$limit"
			ulimit -S -v 1048576
		} 2>/dev/null
		eval "$script"
	) </dev/null >&5 2>&6 5>&- 6>&-
	code=$?
	printf '%sx%s\n%se\n' "$nonce" "$code" "$nonce" >&5
	printf '%sx%s\n%se\n' "$nonce" "$code" "$nonce" >&6
}

while IFS=' ' read -r nonce how limit stdin id len args; do
	if [ "$len" -gt 0 ]; then
		text=$(take "$len")
		eval "s$id=\$text"
	fi
	eval "script=\$s$id"
	eval "set -- $args"
	if [ "$how" = inside ]; then
		inside "$@"
		continue
	fi
	printf '%sb\n' "$nonce" >&5
	printf '%sb\n' "$nonce" >&6
	if [ "$how" = direct ]; then
		fed "$@" 8>&5 7>&6
	else
		# A process that the script leaves behind holds these pipes, not ours.
		{ { fed "$@" 8>&1 | cat >&5 7>&-; } 7>&1 | cat >&6; }
	fi
	printf '%se\n' "$nonce" >&5
	printf '%se\n' "$nonce" >&6
done
