# asks: after `cd -P`, dash and busybox set $PWD to the kernel's path; other shells compute
# it from the names.
asks=${BASH_VERSION-}${KSH_VERSION-}${ZSH_VERSION-}${YASH_VERSION-}

# enter DIR WHERE: enters DIR, whose path must be WHERE. If $device is set, DIR must be on it.
enter() {
	cd -P -- "$1" 2>/dev/null && [ "$PWD" = "$2" ] || return 1
	[ -z "$asks" ] || [ "$(readlink /proc/self/cwd)" = "$PWD" ] || return 1
	[ -z "${device-}" ] || [ "$(stat -c %d .)" = "$device" ]
}
