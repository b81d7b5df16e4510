package node

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// /configz does not show any credential for the static pod URL.
func TestShownConfig(t *testing.T) {
	cfg := &config.Host{NodeSettings: config.NodeSettings{
		StaticPodURL:       "https://user:secret@site.example/pods?token=secret",
		StaticPodURLHeader: map[string][]string{"Authorization": {"Bearer secret"}},
	}}
	for _, header := range []map[string][]string{cfg.StaticPodURLHeader, nil} {
		cfg.StaticPodURLHeader = header
		data, err := json.Marshal(shownConfig(cfg))
		testutil.Must(t, err)
		if strings.Contains(string(data), "secret") || !strings.Contains(string(data), "https://site.example/pods") {
			t.Errorf("it shows %s", data)
		}
		if !strings.Contains(cfg.StaticPodURL, "token=secret") {
			t.Error("the configuration itself has lost it")
		}
	}
}
