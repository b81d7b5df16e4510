package local

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// procFS is /proc.
type procFS struct{}

func (procFS) Read(pid, file string) (content string, ended bool, err error) {
	data, err := os.ReadFile(filepath.Join("/proc", pid, file))
	return string(data), isGone(err), err
}

// isGone reports whether the error says that a process is gone.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// Files reads the links of the process's files. It does not follow them: the file may be on a file
// server that does not answer.
func (procFS) Files(pid string, most int) (files, sockets int, ended, ok bool) {
	dir := filepath.Join("/proc", pid, "fd")
	d, err := os.Open(dir)
	if err != nil {
		return 0, 0, isGone(err), false
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			to, err := os.Readlink(filepath.Join(dir, name))
			if err != nil && !isGone(err) {
				return 0, 0, false, false
			}
			files++
			if strings.HasPrefix(to, "socket:[") {
				sockets++
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return files, sockets, false, true
		case err != nil:
			return 0, 0, isGone(err), false
		case files > most:
			return 0, 0, false, false
		}
	}
}
