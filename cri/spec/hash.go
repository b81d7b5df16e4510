package spec

import (
	"hash/fnv"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
)

// Hash identifies the definition of a container, in the format of kubelets since 1.31
// (HashContainer). It covers the name and the image: of a container's fields, only the image may
// change and requires a new instance. Existing containers carry this format: a change must add the
// former one to FormerHashes.
func Hash(c *v1.Container) string {
	return hashJSON(map[string]string{"name": c.Name, "image": c.Image})
}

// FormerHashes returns the hashes that other programs wrote for the same container: the first releases of Bowline
// hashed its name and image, kubelets 1.15 to 1.30 its whole spec. Earlier kubelets hashed the
// memory of a type whose fields have since changed: those hashes cannot be computed.
func FormerHashes(c *v1.Container) []string {
	h := fnv.New32a()
	h.Write([]byte(c.Name + "\x00" + c.Image))
	return []string{hexHash(h.Sum32()), hashJSON(c)}
}

// hashJSON hashes JSON as it is printed for debugging, as kubelets do.
func hashJSON(v any) string {
	h := fnv.New32a()
	h.Write([]byte(dump.ForHash([]byte(mustJSON(v)))))
	return hexHash(h.Sum32())
}

func hexHash(sum uint32) string { return strconv.FormatUint(uint64(sum), 16) }
