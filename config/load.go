package config

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Load reads a file. It makes relative paths of files that this process reads (kubeconfig,
// certificates) relative to the file's directory. If the content is wrong, the error is an
// *InvalidError.
func Load(path string) (*BowlineConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return ParseFile(path, data)
}

// ParseFile is Load with the content of the file.
func ParseFile(path string, data []byte) (*BowlineConfiguration, error) {
	c, err := Parse(data)
	if err != nil {
		var invalid *InvalidError
		if errors.As(err, &invalid) {
			invalid.File = path
		}
		return nil, err
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	c.resolvePaths(dir)
	c.HostObjects.resolvePaths(dir)
	return c, nil
}

// Parse parses a document, sets defaults and validates. The error is an *InvalidError.
func Parse(data []byte) (*BowlineConfiguration, error) {
	tree, errs := toTree(data)
	if tree == nil {
		return nil, &InvalidError{Errors: errs}
	}
	errs = append(errs, conform(tree)...)
	inherit(tree)
	c := &BowlineConfiguration{}
	clean, err := json.Marshal(tree)
	if err == nil {
		err = json.Unmarshal(clean, c)
	}
	if err != nil {
		// conform has removed whatever does not fit; this is a bug in it.
		return nil, &InvalidError{Errors: append(errs, field.InternalError(nil, err))}
	}
	setDefaults(c)
	// A field that could not be read is already listed: do not also list what validation says of
	// its default.
	known := slices.Clone(errs)
	for _, e := range validate(c) {
		if !slices.ContainsFunc(known, func(k *field.Error) bool { return covers(k.Field, e.Field) }) {
			errs = append(errs, e)
		}
	}
	if len(errs) > 0 {
		return nil, &InvalidError{Errors: errs}
	}
	for i := range c.Hosts {
		c.Hosts[i].Taints = mergeTaints(c.RegisterWithTaints, c.Hosts[i].Taints)
	}
	if o := c.HostObjects; o != nil {
		o.Template.Taints = mergeTaints(c.RegisterWithTaints, o.Template.Taints)
	}
	return c, nil
}

// covers reports whether an error at path a includes path b.
func covers(a, b string) bool {
	return b == a || strings.HasPrefix(b, a+".") || strings.HasPrefix(b, a+"[")
}

// toTree parses exactly one YAML document, which must be a map. The tree is nil if there is none.
func toTree(data []byte) (map[string]any, field.ErrorList) {
	var docs [][]byte
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, field.ErrorList{broken("not YAML: " + err.Error())}
		}
		if v := any(nil); yaml.Unmarshal(doc, &v) != nil || v != nil {
			docs = append(docs, doc)
		}
	}
	switch len(docs) {
	case 1:
	case 0:
		return nil, field.ErrorList{broken("the document is empty; it must begin with apiVersion: " + APIVersion + " and kind: " + Kind)}
	default:
		return nil, field.ErrorList{broken(fmt.Sprintf("%d documents; there is one configuration in a file", len(docs)))}
	}
	var errs field.ErrorList
	asJSON, err := yaml.YAMLToJSONStrict(docs[0])
	if err != nil {
		lenient, again := yaml.YAMLToJSON(docs[0])
		if again != nil {
			return nil, field.ErrorList{broken("not YAML: " + oneLine(again.Error()))}
		}
		// Valid except for duplicate keys; a TypeError has a line for each.
		var duplicates *yamlv2.TypeError
		if errors.As(err, &duplicates) {
			for _, line := range duplicates.Errors {
				errs = append(errs, broken(line))
			}
		} else {
			errs = append(errs, broken(oneLine(err.Error())))
		}
		asJSON = lenient
	}
	d := json.NewDecoder(bytes.NewReader(asJSON))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, append(errs, broken(err.Error()))
	}
	tree, ok := v.(map[string]any)
	if !ok {
		return nil, append(errs, broken("the document is "+kindOf(v)+"; a configuration is a map"))
	}
	return tree, errs
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// broken is an error of the document as a whole.
func broken(detail string) *field.Error {
	return &field.Error{Type: field.ErrorTypeInvalid, Field: "", BadValue: field.OmitValueType{}, Detail: detail}
}

// InvalidError lists all mistakes of a configuration.
type InvalidError struct {
	File   string // empty for Parse
	Errors field.ErrorList
}

// Sentence is all mistakes in one line, each with its field.
func (e *InvalidError) Sentence() string {
	var mistakes []string
	for _, err := range e.Errors {
		mistakes = append(mistakes, mistake(err))
	}
	return oneLine(strings.Join(mistakes, "; "))
}

// mistake formats one error, with its field unless it concerns the whole document.
func mistake(err *field.Error) string {
	if err.Field == "" {
		return err.Detail
	}
	return err.Error()
}

// Error is a line with the number of mistakes, then a line for each.
func (e *InvalidError) Error() string {
	var b strings.Builder
	b.WriteString("configuration")
	if e.File != "" {
		b.WriteString(" " + e.File)
	}
	if n := len(e.Errors); n == 1 {
		b.WriteString(" has a mistake:")
	} else {
		fmt.Fprintf(&b, " has %d mistakes:", n)
	}
	for _, err := range e.Errors {
		b.WriteString("\n  - " + mistake(err))
	}
	return b.String()
}
