package ssh

import (
	"crypto/rand"
	"strings"
	"syscall"
)

// messages joins a script's standard error into one line of limited length.
func messages(stderr []byte) string {
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSpace(string(stderr)), "\n") {
		if len(lines) == 10 {
			lines = append(lines, "...")
			break
		}
		lines = append(lines, line)
	}
	said := strings.Join(lines, "; ")
	if len(said) > 2000 {
		said = said[:2000] + "..."
	}
	return strings.ToValidUTF8(said, "?")
}

// strerrors are the messages of strerror(3) in the C locale, and those of dash.
var strerrors = []struct {
	text  string
	errno syscall.Errno
}{
	{"No such file or directory", syscall.ENOENT},
	{"No such file", syscall.ENOENT},
	{"nonexistent directory", syscall.ENOENT},
	{"Directory nonexistent", syscall.ENOENT},
	{"File exists", syscall.EEXIST},
	{"Not a directory", syscall.ENOTDIR},
	{"Is a directory", syscall.EISDIR},
	{"Directory not empty", syscall.ENOTEMPTY},
	{"Permission denied", syscall.EACCES},
	{"Operation not permitted", syscall.EPERM},
	{"Read-only file system", syscall.EROFS},
	{"No space left on device", syscall.ENOSPC},
	{"Disk quota exceeded", syscall.EDQUOT},
	{"Device or resource busy", syscall.EBUSY},
	{"Resource busy", syscall.EBUSY},
	{"Too many levels of symbolic links", syscall.ELOOP},
	{"File name too long", syscall.ENAMETOOLONG},
	{"Invalid argument", syscall.EINVAL},
	{"Input/output error", syscall.EIO},
	{"Stale file handle", syscall.ESTALE},
}

// errnoOf finds the errno at the end of a message; nil if there is none.
func errnoOf(said string) error {
	said = strings.TrimRight(said, ".; \n")
	for _, w := range strerrors {
		if strings.HasSuffix(said, w.text) {
			return w.errno
		}
	}
	return nil
}

// newSuffix returns a unique suffix for a name.
func newSuffix() string { return strings.ToLower(rand.Text()[:16]) }
