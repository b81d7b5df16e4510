# asks: dash and busybox have the kernel say what $PWD is after `cd -P`; others are not
# believed.
asks=${BASH_VERSION-}${KSH_VERSION-}${ZSH_VERSION-}${YASH_VERSION-}

# enter DIR WHERE: makes DIR, which is WHERE, the working directory. It has to be of
# $device, where that is set.
enter() {
	cd -P -- "$1" 2>/dev/null && [ "$PWD" = "$2" ] || return 1
	[ -z "$asks" ] || [ "$(readlink /proc/self/cwd)" = "$PWD" ] || return 1
	[ -z "${device-}" ] || [ "$(stat -c %d .)" = "$device" ]
}
