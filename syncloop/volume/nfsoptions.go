package volume

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/bowline-k8s/bowline/hint"
)

// nfsFlags and nfsValues are the mount options that a persistent volume may use for NFS: those of
// nfs(5), and the flags of any mount. All others are refused, as mount(8) interprets more of the
// same list: bind, remount and loop would mount the host's own directories and files instead of a
// share, others leave marks in its files. bg is left out because mount(8) then returns before the
// mount exists.
var (
	nfsFlags = []string{
		"ro", "rw", "defaults", "suid", "nosuid", "dev", "nodev", "exec", "noexec", "sync", "async", "dirsync",
		"atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime", "_netdev",
		"soft", "softerr", "hard", "softreval", "nosoftreval", "intr", "nointr", "ac", "noac", "fg", "cto", "nocto",
		"rdirplus", "nordirplus", "resvport", "noresvport", "sharecache", "nosharecache", "fsc", "nofsc", "lock", "nolock",
		"acl", "noacl", "udp", "tcp", "rdma", "trunkdiscovery", "notrunkdiscovery", "migration", "nomigration",
		"alignwrite", "noalignwrite",
	}
	nfsValues = []string{
		"nfsvers", "vers", "minorversion", "timeo", "retrans", "rsize", "wsize", "acregmin", "acregmax", "acdirmin", "acdirmax",
		"actimeo", "retry", "sec", "xprtsec", "proto", "port", "mountport", "mountproto", "mounthost", "mountvers", "namlen",
		"clientaddr", "lookupcache", "local_lock", "nconnect", "max_connect", "rdirplus", "fsc", "write",
	}
	// nfsValue excludes everything that mount(8) takes for the end of an option.
	nfsValue = regexp.MustCompile(`^[A-Za-z0-9_.:%-]+$`)

	serverName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	zone       = regexp.MustCompile(`^[A-Za-z0-9_.-]*$`)
)

// nfsOptions checks the mount options of the named persistent volume and returns them one by one.
func nfsOptions(name string, options []string) ([]string, error) {
	var out []string
	for _, list := range options {
		for o := range strings.SplitSeq(list, ",") {
			key, value, has := strings.Cut(o, "=")
			switch {
			case o == "":
				continue
			case !has && slices.Contains(nfsFlags, key), has && slices.Contains(nfsValues, key) && nfsValue.MatchString(value):
				out = append(out, o)
			default:
				return nil, hint.Add(fmt.Errorf("the mount option %q of the persistent volume %s is not allowed for NFS", o, name),
					"use those of nfs(5) except bg, and flags such as noatime and nosuid")
			}
		}
	}
	return out, nil
}

// nfsSource is the export in the form of mount(8).
func nfsSource(server, path string) (string, error) {
	bare := server
	if strings.HasPrefix(server, "[") && strings.HasSuffix(server, "]") {
		bare = server[1 : len(server)-1]
	}
	addr, err := netip.ParseAddr(bare)
	switch {
	case !strings.HasPrefix(path, "/") || strings.ContainsFunc(path, unicode.IsControl):
	case err == nil && addr.Is6() && zone.MatchString(addr.Zone()):
		return "[" + bare + "]:" + path, nil
	case bare == server && serverName.MatchString(server):
		return server + ":" + path, nil
	}
	return "", hint.Add(fmt.Errorf("nfs server %q and path %q name no export", server, path), "use a host name or an address, and an absolute path")
}
