package spec

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// EnvFile names a file in a volume that has values of variables.
type EnvFile struct{ Volume, Path string }

// EnvFiles returns the files that the container's variables come from, without duplicates.
func EnvFiles(c *v1.Container) []EnvFile {
	var out []EnvFile
	seen := map[EnvFile]bool{}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
			f := EnvFile{from.FileKeyRef.VolumeName, from.FileKeyRef.Path}
			if !seen[f] {
				seen[f] = true
				out = append(out, f)
			}
		}
	}
	return out
}

// file sets a variable from a file of a volume.
func (e *environment) file(name string, ref *v1.FileKeySelector) error {
	data, ok := e.in.Files[EnvFile{ref.VolumeName, ref.Path}]
	if !ok {
		return fmt.Errorf("couldn't parse env file")
	}
	value, err := EnvFileValue(string(data), ref.Key)
	switch {
	case err != nil:
		return fmt.Errorf("couldn't parse env file")
	case value != "":
		e.set(name, value)
	case ref.Optional == nil || !*ref.Optional:
		return fmt.Errorf("environment variable key %q not found in file %q", ref.Key, ref.Path)
	}
	return nil
}

// EnvFileValue looks up a variable in text of lines NAME='value'. The value is the text between
// the quotes, unchanged, and may span lines. Empty lines, comments and blanks before a name are
// skipped; a blank after the equals sign makes the value empty, as in a shell. The first occurrence
// of a name counts. The result is empty if there is none, and an error if the text before it is
// malformed.
func EnvFileValue(text, key string) (string, error) {
	for number := 1; text != ""; number++ {
		line, rest, _ := strings.Cut(text, "\n")
		line = strings.TrimLeft(strings.TrimSuffix(line, "\r"), " \t")
		if line == "" || line[0] == '#' {
			text = rest
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		switch {
		case !ok:
			return "", fmt.Errorf("line %d has no equals sign", number)
		case name == "":
			return "", fmt.Errorf("line %d has no name", number)
		case strings.TrimRight(name, " \t") != name:
			return "", fmt.Errorf("line %d has a blank before its equals sign", number)
		case value != strings.TrimLeft(value, " \t"):
			if name == key {
				return "", nil
			}
			text = rest
			continue
		case !strings.HasPrefix(value, "'"):
			return "", fmt.Errorf("the value in line %d is not in single quotes", number)
		}
		// The value begins at the opening quote and may span lines.
		_, quoted, _ := strings.Cut(text, "='")
		quoted, after, closed := strings.Cut(quoted, "'")
		if !closed {
			return "", fmt.Errorf("the quote in line %d is not closed", number)
		}
		number += strings.Count(quoted, "\n")
		tail, next, _ := strings.Cut(after, "\n")
		tail = strings.TrimLeft(strings.TrimSuffix(tail, "\r"), " \t")
		if tail != "" && tail[0] != '#' {
			return "", fmt.Errorf("line %d has text after its value", number)
		}
		if name == key {
			return strings.ReplaceAll(quoted, "\r\n", "\n"), nil
		}
		text = next
	}
	return "", nil
}
