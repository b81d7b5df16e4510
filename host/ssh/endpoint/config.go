package endpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/bowline-k8s/bowline/hint"
)

// settings are the supported keywords of ssh_config for one alias; the rest of the file is
// ignored. As in OpenSSH the first value counts.
type settings struct {
	hostName, user, port, hostKeyAlias   string
	proxyJump, proxyCommand              string
	identitiesOnly, identityAgent        string
	identityFiles, certificateFiles      []string
	userKnownHosts                       []string
	proxyDecided                         bool // ProxyJump or ProxyCommand, the first one counts
	identityFilesNone, userKnownHostsSet bool
}

// maxIncludes is the maximum depth of Include, as in OpenSSH.
const maxIncludes = 16

// readConfig reads the settings of alias in file; home replaces ~. The parser is our own,
// because it must refuse Match anywhere, also in an included file, instead of guessing.
func readConfig(file, alias, home string) (*settings, error) {
	s := new(settings)
	if err := s.read(file, alias, home, true, 0); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *settings) read(file, alias, home string, parent bool, depth int) error {
	if depth > maxIncludes {
		return fmt.Errorf("ssh_config %s: Include goes deeper than %d files: it may include itself", file, maxIncludes)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("ssh_config: %w", err)
	}
	active := parent
	for i, line := range strings.Split(string(data), "\n") {
		keyword, args, err := splitLine(line)
		if err == nil && keyword != "" {
			switch keyword {
			case "host":
				active = parent && matchHost(args, alias)
			case "match":
				if len(args) != 1 || !strings.EqualFold(args[0], "all") {
					err = hint.Add(errors.New("the keyword Match is not supported"), "use a Host block, or a separate ssh_config for this host")
				}
				active = parent
			case "include":
				err = s.include(args, alias, home, active, depth)
			default:
				if active {
					err = s.set(keyword, args)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("ssh_config %s line %d: %w", file, i+1, err)
		}
	}
	return nil
}

func (s *settings) include(args []string, alias, home string, active bool, depth int) error {
	if len(args) == 0 {
		return errors.New("an Include names no file")
	}
	for _, pattern := range args {
		pattern, err := expandHome(pattern, home)
		if err != nil {
			return err
		}
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(home, ".ssh", pattern)
		}
		files, err := filepath.Glob(pattern)
		if err != nil {
			return fmt.Errorf("the pattern %s of Include: %w", pattern, err)
		}
		for _, f := range files {
			if err := s.read(f, alias, home, active, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// set applies one line of a block that matches the alias.
func (s *settings) set(keyword string, args []string) error {
	one := func(to *string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s takes one value, not %d", keyword, len(args))
		}
		if *to == "" {
			*to = args[0]
		}
		return nil
	}
	switch keyword {
	case "hostname":
		return one(&s.hostName)
	case "user":
		return one(&s.user)
	case "port":
		return one(&s.port)
	case "hostkeyalias":
		return one(&s.hostKeyAlias)
	case "identityagent":
		return one(&s.identityAgent)
	case "identitiesonly":
		if err := one(&s.identitiesOnly); err != nil {
			return err
		}
		if v := strings.ToLower(args[0]); v != "yes" && v != "no" && v != "true" && v != "false" {
			return fmt.Errorf("IdentitiesOnly is %q: it takes yes or no", args[0])
		}
	case "proxyjump", "proxycommand":
		if s.proxyDecided {
			return nil
		}
		s.proxyDecided = true
		if keyword == "proxycommand" {
			s.proxyCommand = strings.Join(args, " ")
			return nil
		}
		return one(&s.proxyJump)
	case "identityfile", "certificatefile":
		if len(args) != 1 {
			return fmt.Errorf("%s takes one value, not %d", keyword, len(args))
		}
		switch {
		case keyword == "certificatefile":
			s.certificateFiles = append(s.certificateFiles, args[0])
		case strings.EqualFold(args[0], "none"):
			s.identityFilesNone = true
		default:
			s.identityFiles = append(s.identityFiles, args[0])
		}
	case "userknownhostsfile":
		if !s.userKnownHostsSet {
			s.userKnownHostsSet, s.userKnownHosts = true, args
		}
	}
	return nil
}

// splitLine returns the keyword of a line in lower case, and its arguments; the keyword is empty
// for a blank line or a comment. Quotes as in OpenSSH: "…" and '…', and \ before a quote, a
// backslash or, outside quotes, a space.
func splitLine(line string) (keyword string, args []string, err error) {
	line = strings.Trim(line, " \t\r\f")
	if line == "" || line[0] == '#' {
		return "", nil, nil
	}
	end := strings.IndexAny(line, " \t=\"")
	if end < 0 {
		end = len(line)
	}
	keyword = strings.ToLower(line[:end])
	rest := strings.TrimLeft(line[end:], " \t")
	if r, ok := strings.CutPrefix(rest, "="); ok {
		rest = strings.TrimLeft(r, " \t")
	}
	if keyword == "proxycommand" { // a command line keeps its quotes
		return keyword, []string{rest}, nil
	}
	for rest != "" && rest[0] != '#' {
		var word strings.Builder
		var quote byte
		i := 0
		for ; i < len(rest); i++ {
			c := rest[i]
			switch {
			case c == '\\' && i+1 < len(rest) && (strings.IndexByte(`"'\`, rest[i+1]) >= 0 || quote == 0 && rest[i+1] == ' '):
				i++
				word.WriteByte(rest[i])
				continue
			case quote != 0 && c == quote:
				quote = 0
				continue
			case quote == 0 && (c == '"' || c == '\''):
				quote = c
				continue
			}
			if quote == 0 && (c == ' ' || c == '\t') {
				break
			}
			word.WriteByte(c)
		}
		if quote != 0 {
			return "", nil, fmt.Errorf("%s: a quote is not closed", keyword)
		}
		args = append(args, word.String())
		rest = strings.TrimLeft(rest[i:], " \t")
	}
	if len(args) == 0 {
		return "", nil, fmt.Errorf("%s has no value", keyword)
	}
	return keyword, args, nil
}

// matchHost applies a Host line: one pattern matches and no negated one does. As in OpenSSH it
// is case-sensitive.
func matchHost(patterns []string, alias string) bool {
	matched := false
	for _, p := range patterns {
		negated := strings.HasPrefix(p, "!")
		if !wildcard(strings.TrimPrefix(p, "!"), alias) {
			continue
		}
		if negated {
			return false
		}
		matched = true
	}
	return matched
}

// wildcard matches * and ?, in time linear in len(pattern)*len(s).
func wildcard(pattern, s string) bool {
	p, i, star, mark := 0, 0, -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// expandHome replaces a leading ~/ with home.
func expandHome(p, home string) (string, error) {
	rest, ok := strings.CutPrefix(p, "~")
	if !ok {
		return p, nil
	}
	if rest != "" && rest[0] != '/' {
		return "", hint.Add(fmt.Errorf("%s: the home of another user is not looked up", p), "write the path")
	}
	if home == "" {
		return "", hint.Add(fmt.Errorf("%s: there is no home directory here", p), "write the path")
	}
	return filepath.Join(home, rest), nil
}

// expand replaces the tokens of OpenSSH (%h, %d, …) that are in tokens.
func expand(value string, tokens map[byte]string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] != '%' {
			out.WriteByte(value[i])
			continue
		}
		i++
		if i == len(value) {
			return "", fmt.Errorf("%q ends in a lone %%", value)
		}
		by, ok := tokens[value[i]]
		if !ok {
			return "", hint.Add(fmt.Errorf("%q: %%%c is not supported", value, value[i]), "write the value")
		}
		out.WriteString(by)
	}
	return out.String(), nil
}

// expandEnv replaces ${NAME}, which must be set.
func expandEnv(value string) (string, error) {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(value, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, rest, closed := strings.Cut(after, "}")
		by, set := os.LookupEnv(name)
		if !closed || !set {
			return "", hint.Add(fmt.Errorf("${%s} is not set in this environment", name), "write the value")
		}
		out.WriteString(by)
		value = rest
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return !errors.Is(err, fs.ErrNotExist)
}
