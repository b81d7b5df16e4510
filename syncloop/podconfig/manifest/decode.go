package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/pod"
)

// MaxBytes is the maximum size of a manifest.
const MaxBytes = 10 << 20

// Decode makes the pods of one manifest in YAML or JSON: a Pod, or, from a URL, also a PodList. One
// unusable pod makes the whole manifest unusable, because its author did not intend half of a list.
// A manifest with warnings is used.
func Decode(data []byte, from Origin) (pods []*v1.Pod, warnings []string, err error) {
	if rest, more := firstDocument(data); more {
		data = rest
		warnings = append(warnings, "only the first document of the file is used: one static pod a file")
	}
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(data, &head); err != nil {
		return nil, nil, fmt.Errorf("it is not YAML or JSON of an object: %w", plain(err))
	}
	switch {
	case head.APIVersion == "" && head.Kind == "":
		return nil, nil, errors.New("it has no apiVersion and kind: want apiVersion v1 and kind Pod")
	case head.APIVersion != "v1":
		return nil, nil, fmt.Errorf("its apiVersion is %q: want v1", head.APIVersion)
	case head.Kind == "Pod":
		p := &v1.Pod{}
		if warnings, err = read(data, p, warnings); err != nil {
			return nil, nil, err
		}
		pods = append(pods, p)
	case head.Kind == "PodList" && from.Source == pod.SourceHTTP:
		list := &v1.PodList{}
		if warnings, err = read(data, list, warnings); err != nil {
			return nil, nil, err
		}
		for i := range list.Items {
			pods = append(pods, &list.Items[i])
		}
	default:
		return nil, nil, fmt.Errorf("its kind is %q: want Pod", head.Kind)
	}
	for _, p := range pods {
		if err := finish(p, from); err != nil {
			return nil, nil, err
		}
	}
	return pods, warnings, nil
}

// read ignores unknown fields as a kubelet does, and warns about them.
func read(data []byte, into any, warnings []string) ([]string, error) {
	// The manifest may be a file on a remote host.
	if text, err := yaml.YAMLToJSON(data); err != nil {
		return nil, fmt.Errorf("it is not YAML or JSON of an object: %w", plain(err))
	} else if err := pod.CheckQuantities(text, into); err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict(data, into); err == nil {
		return warnings, nil
	} else if loose := yaml.Unmarshal(data, into); loose != nil {
		return nil, fmt.Errorf("it does not fit: %w", plain(loose))
	} else {
		return append(warnings, "ignored: "+plain(err).Error()), nil
	}
}

func finish(p *v1.Pod, from Origin) error {
	name := p.Name
	if name == "" {
		return errors.New("metadata.name is missing")
	}
	identify(p, from)
	setDefaults(p)
	if what := references(p); what != "" {
		return fmt.Errorf("pod %q: a static pod may not use %s: it must run where there is no API server", name, what)
	}
	if errs := validate(p); len(errs) > 0 {
		return fmt.Errorf("pod %q: %w", name, errs.ToAggregate())
	}
	return nil
}

// firstDocument returns the first non-empty document, and whether another one follows.
func firstDocument(data []byte) (first []byte, more bool) {
	if !bytes.Contains(data, []byte("\n---")) && !bytes.HasPrefix(data, []byte("---")) {
		return data, false
	}
	var documents [][]byte
	var current []byte
	keep := func() {
		if !blank(current) {
			documents = append(documents, current)
		}
		current = nil
	}
	for line := range bytes.Lines(data) {
		if text := bytes.TrimRight(line, " \t\r\n"); bytes.Equal(text, []byte("---")) || bytes.HasPrefix(line, []byte("--- ")) {
			keep()
			continue
		}
		current = append(current, line...)
	}
	if keep(); len(documents) == 0 {
		return data, false
	}
	return documents[0], len(documents) > 1
}

// blank says whether data has only empty lines and comments.
func blank(data []byte) bool {
	for line := range bytes.Lines(data) {
		if text := bytes.TrimSpace(line); len(text) > 0 && text[0] != '#' {
			return false
		}
	}
	return true
}

// plain strips the libraries' prefixes from an error.
func plain(err error) error {
	s := err.Error()
	for _, prefix := range []string{"error converting YAML to JSON: ", "error unmarshaling JSON: ", "while decoding JSON: ", "json: ", "yaml: "} {
		s = strings.TrimPrefix(s, prefix)
	}
	return errors.New(s)
}
