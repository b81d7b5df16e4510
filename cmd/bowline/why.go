package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

func whyCommand() *cobra.Command {
	why := &cobra.Command{Use: "why", Short: "Ask a node why it does what it does"}
	var way access
	var output string
	podCmd := &cobra.Command{
		Use:   "pod NAMESPACE/NAME",
		Short: "Why a pod runs, or does not: what was seen, decided and awaited",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			namespace, name, ok := strings.Cut(args[0], "/")
			if !ok {
				namespace, name = metav1.NamespaceDefault, args[0]
			}
			if namespace == "" || name == "" || strings.Contains(name, "/") {
				return fmt.Errorf("%q does not name a pod: say NAMESPACE/NAME", args[0])
			}
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: text or json", output)
			}
			report, err := askWhy(c, &way, namespace, name)
			if err != nil {
				return err
			}
			if output == "json" {
				encoder := json.NewEncoder(c.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(report)
			}
			_, err = fmt.Fprint(c.OutOrStdout(), report.Text(time.Now()))
			return err
		},
	}
	way.register(podCmd)
	podCmd.Flags().StringVarP(&output, "output", "o", "text", "text, or json for programs")
	why.AddCommand(podCmd)
	return why
}

// askWhy reaches the pod's node through the API server's proxy: the answer is
// behind the node's authenticated endpoint, wherever the caller is.
func askWhy(c *cobra.Command, way *access, namespace, name string) (*pod.WhyReport, error) {
	_, client, err := way.clients()
	if err != nil {
		return nil, err
	}
	p, err := client.CoreV1().Pods(namespace).Get(c.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	if p.Spec.NodeName == "" {
		return nil, fmt.Errorf("pod %s/%s is on no node yet: the scheduler says why (kubectl -n %s describe pod %s)", namespace, name, namespace, name)
	}
	data, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(p.Spec.NodeName).SubResource("proxy").
		Suffix("bowline/v1/why", namespace, name).DoRaw(c.Context())
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", p.Spec.NodeName, whyNot(err, data))
	}
	report := &pod.WhyReport{}
	if err := json.Unmarshal(data, report); err != nil {
		return nil, fmt.Errorf("node %s answered something else than a report; is it a Bowline node? %w", p.Spec.NodeName, err)
	}
	return report, nil
}

// whyNot prefers the node's own words to the API server's.
func whyNot(err error, body []byte) error {
	if text := strings.TrimSpace(string(body)); text != "" && !strings.HasPrefix(text, "{") {
		return errors.New(text)
	}
	if apierrors.IsNotFound(err) {
		return errors.New("it does not answer this question; is it a Bowline node?")
	}
	return err
}
