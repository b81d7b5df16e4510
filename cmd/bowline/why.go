package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/hostadmin"
)

func whyCommand() *cobra.Command {
	q := &whyQuestion{}
	why := &cobra.Command{
		Use:   "why",
		Short: "Show why a pod runs or does not run",
		Example: `  bowline why pod web-0 -n shop
  bowline why pod/web-0`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			kind, name, typed := strings.Cut(args[0], "/")
			c.SuggestionsMinimumDistance = suggestDistance
			switch {
			case !typed && len(c.SuggestionsFor(args[0])) > 0:
				return unknownCommand(c, args[0])
			case !typed:
				return wrongUsage(c, "unknown command %q for %q; to ask for a pod of that name, run: %s pod %s", args[0], c.CommandPath(), c.CommandPath(), args[0])
			case !slices.Contains(podKinds, kind):
				return wrongUsage(c, "%s: why supports only pods; run: %s pod NAME", args[0], c.CommandPath())
			case len(args) > 1:
				return wrongUsage(c, "unexpected argument %q; run: %s pod NAME", args[1], c.CommandPath())
			}
			return q.ask(c, name)
		},
	}
	podCmd := &cobra.Command{
		Use:   "pod NAME [-n NAMESPACE]",
		Short: "Show why a pod runs or does not run",
		Long: `Show why a pod runs or does not run: what its node observed, decided and waits for.

NAME may be NAMESPACE/NAME; otherwise --namespace or the kubeconfig's context sets the
namespace. The command uses the API server's proxy to the node (nodes/proxy).`,
		Example: `  bowline why pod web-0
  bowline why pod web-0 -n shop
  bowline why pod shop/web-0 -o json`,
		Args: arguments("NAME"),
		RunE: func(c *cobra.Command, args []string) error { return q.ask(c, args[0]) },
	}
	for _, c := range []*cobra.Command{why, podCmd} {
		q.way.register(c)
		c.Flags().StringVarP(&q.namespace, "namespace", "n", "", "the pod's namespace (default: the context's)")
		outputFlag(c, &q.output)
	}
	why.AddCommand(podCmd)
	return why
}

// podKinds are the names by which kubectl knows pods.
var podKinds = []string{"pod", "pods", "po"}

// whyQuestion is one run of "bowline why".
type whyQuestion struct {
	way               access
	namespace, output string
}

func (q *whyQuestion) ask(c *cobra.Command, pod string) error {
	if err := checkOutput(c, q.output); err != nil {
		return err
	}
	namespace, name, err := q.names(c, pod)
	if err != nil {
		return err
	}
	_, client, err := q.way.clients()
	if err != nil {
		return err
	}
	report, err := hostadmin.Why(c.Context(), client, namespace, name)
	if apierrors.IsNotFound(err) && slices.Contains(podKinds, namespace) {
		return hint.Add(err, "%q means NAMESPACE/NAME; for another namespace, run: %s %s -n NAMESPACE", pod, c.CommandPath(), name)
	}
	if err != nil {
		return err
	}
	if q.output == "json" {
		return writeJSON(c.OutOrStdout(), report)
	}
	_, err = fmt.Fprint(c.OutOrStdout(), report.Text(time.Now()))
	return err
}

// names returns the namespace and name of the pod that the user means.
func (q *whyQuestion) names(c *cobra.Command, pod string) (namespace, name string, err error) {
	namespace, name, qualified := strings.Cut(pod, "/")
	switch {
	case !qualified && pod != "":
		name, namespace = pod, q.namespace
		if namespace == "" {
			namespace, err = q.way.namespace()
		}
	case namespace == "" || name == "" || strings.Contains(name, "/"):
		err = wrongUsage(c, "%q does not name a pod: use NAME or NAMESPACE/NAME", pod)
	case q.namespace != "" && q.namespace != namespace:
		err = wrongUsage(c, "%q is in the namespace %s, but --namespace is %s: set one of them", pod, namespace, q.namespace)
	}
	return namespace, name, err
}
