package provider

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const maxNamesPerImage = 5

// NodeImages turns CRI ListImages into node.status.images: the largest first, at most most of them
// unless that is negative, with at most five names each (digests before tags).
func NodeImages(images []*runtimeapi.Image, most int) []v1.ContainerImage {
	var out []v1.ContainerImage
	for _, i := range images {
		names := slices.Concat(i.RepoDigests, i.RepoTags)
		if len(names) == 0 {
			continue // of no use to the scheduler
		}
		out = append(out, v1.ContainerImage{
			Names:     names[:min(len(names), maxNamesPerImage)],
			SizeBytes: int64(i.Size),
		})
	}
	slices.SortStableFunc(out, func(a, b v1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), cmp.Compare(a.Names[0], b.Names[0]))
	})
	if most < 0 {
		return out
	}
	return out[:min(len(out), most)]
}
