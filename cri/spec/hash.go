package spec

import (
	"hash/fnv"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
)

// Hash tells what a container was made of, as kubelets from 1.31 on write it
// (HashContainer): its name and its image, which alone may change and can only be taken
// up by a new instance. The format is part of what lies on machines: a change of it must
// add the former one to FormerHashes.
func Hash(c *v1.Container) string {
	return hashJSON(map[string]string{"name": c.Name, "image": c.Image})
}

// FormerHashes are what others wrote for the same container: the first releases of
// Bowline its name and image, kubelets from 1.15 to 1.30 all of its spec. Earlier ones
// hashed the memory of a type that has other fields today: those cannot be computed.
func FormerHashes(c *v1.Container) []string {
	h := fnv.New32a()
	h.Write([]byte(c.Name + "\x00" + c.Image))
	return []string{hexHash(h.Sum32()), hashJSON(c)}
}

// hashJSON is of JSON as it is printed for debugging, which is how kubelets have it.
func hashJSON(v any) string {
	h := fnv.New32a()
	h.Write([]byte(dump.ForHash([]byte(mustJSON(v)))))
	return hexHash(h.Sum32())
}

func hexHash(sum uint32) string { return strconv.FormatUint(uint64(sum), 16) }
