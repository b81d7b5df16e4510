package charts

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

var (
	// tagged is Bowline's image with a tag, in a command or in prose.
	tagged = regexp.MustCompile(`(?:^|[\s=/])bowline:(v[0-9][\w.-]*)`)
	// versioned is the version with which "make image" tags the archive.
	versioned = regexp.MustCompile(`\bVERSION=(\S+)`)
	// loaded is a command that loads the archive into a node, with the tag of "make image".
	loaded = regexp.MustCompile(`load image-archive|images import`)
)

// TestDocumentsTagTheImageThatTheChartPulls: the chart pulls its appVersion, so a document that
// builds, pushes or loads the image with another tag leads to ErrImagePull.
func TestDocumentsTagTheImageThatTheChartPulls(t *testing.T) {
	data := testutil.ReadFile(t, "bowline/Chart.yaml")
	var chart struct{ AppVersion string }
	if err := yaml.Unmarshal(data, &chart); err != nil || chart.AppVersion == "" {
		t.Fatalf("appVersion %q: %v", chart.AppVersion, err)
	}
	files, err := filepath.Glob("../docs/*.md")
	testutil.Must(t, err)
	found := 0
	for _, file := range append(files, "../README.md", "../deploy/kubernetes/bowline.yaml", "bowline/values.yaml") {
		data := testutil.ReadFile(t, file)
		text := string(data)
		for _, pattern := range []*regexp.Regexp{tagged, versioned} {
			for _, m := range pattern.FindAllStringSubmatch(text, -1) {
				found++
				if tag := strings.TrimRight(m[1], ".`\"'"); tag != chart.AppVersion {
					t.Errorf("%s has the tag %s in %q; the chart pulls %s", file, tag, strings.TrimSpace(m[0]), chart.AppVersion)
				}
			}
		}
		// Without VERSION the tag is the output of git describe.
		if loaded.MatchString(text) && !strings.Contains(text, "make image VERSION="+chart.AppVersion) {
			t.Errorf("%s loads the archive of an image that it does not build with VERSION=%s", file, chart.AppVersion)
		}
	}
	if found < 4 {
		t.Errorf("only %d tags were found in the documents", found)
	}
}
