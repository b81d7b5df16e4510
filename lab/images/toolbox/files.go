package main

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// flags splits leading -x arguments, one letter each, from the rest. takes lists
// the letters that take a value.
func (c *call) flags(takes string) (map[rune]string, []string) {
	found := map[rune]string{}
	args := c.args
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		arg := args[0][1:]
		args = args[1:]
		if arg == "-" {
			break
		}
		for i, f := range arg {
			found[f] = ""
			if !strings.ContainsRune(takes, f) {
				continue
			}
			if rest := arg[i+1:]; rest != "" {
				found[f] = rest
			} else if len(args) > 0 {
				found[f], args = args[0], args[1:]
			}
			break
		}
	}
	return found, args
}

// each runs f over the named files, or over standard input if there are none.
func (c *call) each(files []string, f func(name string, r io.Reader) error) int {
	if len(files) == 0 {
		files = []string{"-"}
	}
	status := 0
	for _, name := range files {
		r := c.stdin
		if name != "-" {
			file, err := os.Open(c.path(name))
			if err != nil {
				status = c.fail(err)
				continue
			}
			r = file
			defer file.Close()
		}
		if err := f(name, r); err != nil {
			status = c.fail(err)
		}
	}
	return status
}

func cat(c *call) int {
	return c.each(c.args, func(_ string, r io.Reader) error {
		_, err := io.Copy(c.stdout, r)
		return err
	})
}

// appendTo adds a line to a file in one write, so that writers do not mix:
// append FILE WORDS...
func appendTo(c *call) int {
	if len(c.args) == 0 {
		return c.usage("FILE WORDS...")
	}
	file, err := os.OpenFile(c.path(c.args[0]), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return c.fail(err)
	}
	_, err = file.WriteString(strings.Join(c.args[1:], " ") + "\n")
	if err = errors.Join(err, file.Close()); err != nil {
		return c.fail(err)
	}
	return 0
}

func chmod(c *call) int {
	if len(c.args) < 2 {
		return c.usage("OCTAL FILE...")
	}
	mode, err := strconv.ParseUint(c.args[0], 8, 12)
	if err != nil {
		return c.fail(err)
	}
	return c.all(c.args[1:], func(p string) error { return syscall.Chmod(p, uint32(mode)) })
}

func chown(c *call) int {
	if len(c.args) < 2 {
		return c.usage("UID[:GID] FILE...")
	}
	uid, gid, both := strings.Cut(c.args[0], ":")
	u, err := strconv.Atoi(uid)
	g := -1
	if both && err == nil {
		g, err = strconv.Atoi(gid)
	}
	if err != nil {
		return c.fail(err)
	}
	return c.all(c.args[1:], func(p string) error { return os.Chown(p, u, g) })
}

// all runs f over every path.
func (c *call) all(paths []string, f func(path string) error) int {
	status := 0
	for _, p := range paths {
		if err := f(c.path(p)); err != nil {
			status = c.fail(err)
		}
	}
	return status
}

func cp(c *call) int {
	_, args := c.flags("")
	if len(args) != 2 {
		return c.usage("FILE TARGET")
	}
	data, err := os.ReadFile(c.path(args[0]))
	if err != nil {
		return c.fail(err)
	}
	info, err := os.Stat(c.path(args[0]))
	if err != nil {
		return c.fail(err)
	}
	if err := os.WriteFile(into(c.path(args[1]), args[0]), data, info.Mode().Perm()); err != nil {
		return c.fail(err)
	}
	return 0
}

// into is target itself, or the file of that name in it if it is a directory.
func into(target, name string) string {
	if info, err := os.Stat(target); err == nil && info.IsDir() {
		return filepath.Join(target, filepath.Base(name))
	}
	return target
}

func mv(c *call) int {
	_, args := c.flags("")
	if len(args) != 2 {
		return c.usage("FILE TARGET")
	}
	if err := os.Rename(c.path(args[0]), into(c.path(args[1]), args[0])); err != nil {
		return c.fail(err)
	}
	return 0
}

func ln(c *call) int {
	flags, args := c.flags("")
	if len(args) != 2 {
		return c.usage("[-s] [-f] TARGET LINK")
	}
	link := c.path(args[1])
	if _, ok := flags['f']; ok {
		_ = os.Remove(link)
	}
	var err error
	if _, ok := flags['s']; ok {
		err = os.Symlink(args[0], link)
	} else {
		err = os.Link(c.path(args[0]), link)
	}
	if err != nil {
		return c.fail(err)
	}
	return 0
}

func ls(c *call) int {
	flags, args := c.flags("")
	_, long := flags['l']
	_, numeric := flags['n']
	_, hidden := flags['a']
	_, self := flags['d']
	if len(args) == 0 {
		args = []string{"."}
	}
	show := func(name string, info fs.FileInfo, link string) {
		if !long && !numeric {
			fmt.Fprintln(c.stdout, name)
			return
		}
		st := info.Sys().(*syscall.Stat_t)
		if link != "" {
			name += " -> " + link
		}
		fmt.Fprintf(c.stdout, "%s %d %d %d %d %s %s\n", info.Mode(), st.Nlink, st.Uid, st.Gid, info.Size(), info.ModTime().UTC().Format(time.DateTime), name)
	}
	return c.all(args, func(p string) error {
		info, err := os.Stat(p)
		if self {
			info, err = os.Lstat(p)
		}
		if err != nil {
			return err
		}
		if !info.IsDir() || self {
			link, _ := os.Readlink(p)
			show(p, info, link)
			return nil
		}
		entries, err := os.ReadDir(p)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") && !hidden {
				continue
			}
			if info, err := e.Info(); err == nil {
				link, _ := os.Readlink(filepath.Join(p, e.Name()))
				show(e.Name(), info, link)
			}
		}
		return nil
	})
}

func mkdir(c *call) int {
	flags, args := c.flags("m")
	return c.all(args, func(p string) error {
		if _, ok := flags['p']; ok {
			return os.MkdirAll(p, 0o755)
		}
		return os.Mkdir(p, 0o755)
	})
}

func mkfifo(c *call) int {
	return c.all(c.args, func(p string) error { return syscall.Mkfifo(p, 0o644) })
}

func rm(c *call) int {
	flags, args := c.flags("")
	_, recursive := flags['r']
	_, force := flags['f']
	return c.all(args, func(p string) error {
		if recursive {
			return os.RemoveAll(p)
		}
		err := os.Remove(p)
		if force && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

func readlink(c *call) int {
	flags, args := c.flags("")
	return c.all(args, func(p string) error {
		read := os.Readlink
		if _, ok := flags['f']; ok {
			read = filepath.EvalSymlinks
		}
		target, err := read(p)
		if err == nil {
			fmt.Fprintln(c.stdout, target)
		}
		return err
	})
}

func touch(c *call) int {
	return c.all(c.args, func(p string) error {
		file, err := os.OpenFile(p, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return errors.Join(file.Close(), os.Chtimes(p, time.Now(), time.Now()))
	})
}

// stat prints the fields that tests need: mode in octal, uid, gid, size, kind, name.
func stat(c *call) int {
	return c.all(c.args, func(p string) error {
		info, err := os.Lstat(p)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		kind := "file"
		switch {
		case info.IsDir():
			kind = "dir"
		case info.Mode()&fs.ModeSymlink != 0:
			kind = "link"
		case !info.Mode().IsRegular():
			kind = info.Mode().Type().String()
		}
		fmt.Fprintf(c.stdout, "%04o %d %d %d %s %s\n", st.Mode&0o7777, st.Uid, st.Gid, st.Size, kind, p)
		return nil
	})
}

func df(c *call) int {
	args := c.args
	if len(args) == 0 {
		args = []string{"/"}
	}
	return c.all(args, func(p string) error {
		var st unix.Statfs_t
		if err := unix.Statfs(p, &st); err != nil {
			return err
		}
		fmt.Fprintf(c.stdout, "%s size=%d available=%d type=%#x\n", p, st.Blocks*uint64(st.Bsize), st.Bavail*uint64(st.Bsize), st.Type)
		return nil
	})
}

func mount(c *call) int {
	c.args = []string{"/proc/self/mounts"}
	return cat(c)
}

func syncDisks(*call) int {
	unix.Sync()
	return 0
}

func tee(c *call) int {
	flags, args := c.flags("")
	mode := os.O_TRUNC
	if _, ok := flags['a']; ok {
		mode = os.O_APPEND
	}
	writers := []io.Writer{c.stdout}
	for _, a := range args {
		file, err := os.OpenFile(c.path(a), os.O_CREATE|os.O_WRONLY|mode, 0o644)
		if err != nil {
			return c.fail(err)
		}
		defer file.Close()
		writers = append(writers, file)
	}
	if _, err := io.Copy(io.MultiWriter(writers...), c.stdin); err != nil {
		return c.fail(err)
	}
	return 0
}

func wc(c *call) int {
	flags, args := c.flags("")
	return c.each(args, func(_ string, r io.Reader) error {
		data, err := io.ReadAll(r)
		lines, words := strings.Count(string(data), "\n"), len(strings.Fields(string(data)))
		_, l := flags['l']
		_, w := flags['w']
		_, b := flags['c']
		switch {
		case l:
			fmt.Fprintln(c.stdout, lines)
		case w:
			fmt.Fprintln(c.stdout, words)
		case b:
			fmt.Fprintln(c.stdout, len(data))
		default:
			fmt.Fprintln(c.stdout, lines, words, len(data))
		}
		return err
	})
}

func sha256sum(c *call) int {
	return c.each(c.args, func(name string, r io.Reader) error {
		h := sha256.New()
		_, err := io.Copy(h, r)
		fmt.Fprintf(c.stdout, "%x  %s\n", h.Sum(nil), name)
		return err
	})
}

func sortLines(c *call) int {
	flags, args := c.flags("")
	var lines []string
	status := c.each(args, func(_ string, r io.Reader) error {
		s := bufio.NewScanner(r)
		for s.Scan() {
			lines = append(lines, s.Text())
		}
		return s.Err()
	})
	slices.Sort(lines)
	if _, ok := flags['u']; ok {
		lines = slices.Compact(lines)
	}
	for _, l := range lines {
		fmt.Fprintln(c.stdout, l)
	}
	return status
}

// head and tail take -n LINES or -c BYTES.
func head(c *call) int {
	flags, args := c.flags("nc")
	return c.each(args, func(_ string, r io.Reader) error {
		if n, ok := flags['c']; ok {
			size, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				return err
			}
			_, err = io.Copy(c.stdout, io.LimitReader(r, size))
			return err
		}
		left, err := lines(flags)
		if err != nil {
			return err
		}
		s := bufio.NewScanner(r)
		for ; left > 0 && s.Scan(); left-- {
			fmt.Fprintln(c.stdout, s.Text())
		}
		return s.Err()
	})
}

func lines(flags map[rune]string) (int, error) {
	if n, ok := flags['n']; ok {
		return strconv.Atoi(n)
	}
	return 10, nil
}

func tail(c *call) int {
	flags, args := c.flags("n")
	count, err := lines(flags)
	if err != nil {
		return c.fail(err)
	}
	_, follow := flags['f']
	return c.each(args, func(_ string, r io.Reader) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		all := strings.SplitAfter(string(data), "\n")
		if all[len(all)-1] == "" {
			all = all[:len(all)-1]
		}
		fmt.Fprint(c.stdout, strings.Join(all[max(0, len(all)-count):], ""))
		for follow && c.pause(200*time.Millisecond) {
			if _, err := io.Copy(c.stdout, r); err != nil {
				return err
			}
		}
		return nil
	})
}

func grep(c *call) int {
	flags, args := c.flags("")
	if len(args) == 0 {
		return c.usage("[-q] [-v] [-c] WORD [FILE...]")
	}
	_, quiet := flags['q']
	_, invert := flags['v']
	_, counting := flags['c']
	found := 0
	status := c.each(args[1:], func(_ string, r io.Reader) error {
		s := bufio.NewScanner(r)
		for s.Scan() {
			if strings.Contains(s.Text(), args[0]) == invert {
				continue
			}
			if found++; !quiet && !counting {
				fmt.Fprintln(c.stdout, s.Text())
			}
		}
		return s.Err()
	})
	if counting {
		fmt.Fprintln(c.stdout, found)
	}
	if status == 0 && found == 0 {
		return 1
	}
	return status
}

// dd copies blocks: if= of= bs= count=
func dd(c *call) int {
	values := map[string]string{"bs": "512"}
	for _, a := range c.args {
		key, value, _ := strings.Cut(a, "=")
		values[key] = value
	}
	size, err := bytesOf(values["bs"])
	if err != nil {
		return c.fail(err)
	}
	in, out := c.stdin, c.stdout
	if p := values["if"]; p != "" {
		file, err := os.Open(c.path(p))
		if err != nil {
			return c.fail(err)
		}
		defer file.Close()
		in = file
	}
	if p := values["of"]; p != "" {
		file, err := os.Create(c.path(p))
		if err != nil {
			return c.fail(err)
		}
		defer file.Close()
		out = file
	}
	if n := values["count"]; n != "" {
		count, err := strconv.ParseInt(n, 10, 64)
		if err != nil {
			return c.fail(err)
		}
		in = io.LimitReader(in, count*size)
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, make([]byte, size))
	fmt.Fprintf(c.stderr, "%d bytes copied\n", n)
	if err != nil {
		return c.fail(err)
	}
	return 0
}

// fallocate allocates space at once: fallocate -l SIZE FILE
func fallocate(c *call) int {
	flags, args := c.flags("l")
	size, err := bytesOf(flags['l'])
	if err != nil || len(args) != 1 {
		return c.usage("-l SIZE FILE")
	}
	file, err := os.OpenFile(c.path(args[0]), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return c.fail(err)
	}
	defer file.Close()
	if err := unix.Fallocate(int(file.Fd()), 0, 0, size); err != nil {
		return c.fail(err)
	}
	return 0
}

// bytesOf reads a size such as 64M; k, M and G are powers of 1024.
func bytesOf(s string) (int64, error) {
	factor := int64(1)
	for i, unit := range []string{"K", "M", "G"} {
		for _, suffix := range []string{unit, strings.ToLower(unit), unit + "i"} {
			if n, ok := strings.CutSuffix(s, suffix); ok {
				s, factor = n, int64(1)<<(10*(i+1))
			}
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n * factor, err
}
