// Package twin runs the same manifests on a real kubelet's node and on Bowline's, and compares what
// each reported to the API server: every change of the pods' statuses, and every event.
//
// A Recording is what a watch saw of one scenario on one node, from before the pod was made until
// it was gone and no more events came. Normalise, which is pure, turns it into a Timeline: tracks
// (the pod's phase; each of its conditions; each container's state, and its flags ready and
// started; the status' other fields), events by the part of the pod that they concern, the lives of
// each container, and two whole statuses: the last one before the deletion, and the last one of
// all. The normaliser removes a closed list of things (normalise.go): names that differ from node
// to node, and times.
//
// Compare, which is pure as well, returns the differences:
//
//   - A track is a sequence of distinct values. A reporter may put two changes into one
//     write, so a value of one side may be missing on the other if it lasted less than
//     passingTime, if nothing is in its place, and if it is of a kind that adds no
//     information to its neighbours (passing, in compare.go). Everything else must be in
//     both, in the same order. A condition that flips is never passing.
//   - The whole statuses are compared field by field; of times only whether they are set.
//   - Events are compared part by part, in the order in which they came: type, reason,
//     message and reporter. The count of each must be the same, except for reasons that
//     recur on a timer (clocked, in compare.go), where the counts must be near each
//     other.
//   - The lives of a container (from one start to its end) must be equal in number and end
//     alike; how long each took, and how long the container waited before it, must agree
//     within nearTime and nearPart. So must the times from deletion to the end.
//   - Starts and ends across the containers of a pod must not be in the reverse order if
//     they are a second apart.
//
// Two kubelets bound the noise: each scenario runs on two of them, and the differences between
// those two are noise, which the results keep beside the differences between the kubelets and
// Bowline. A difference of Bowline counts if it is one to both kubelets.
//
// The run needs a lab: BOWLINE_E2E=1 BOWLINE_TWIN=1, or make twin. Its results are in
// docs/twin.json; each difference must have its reason in causes.yaml, or the run fails.
// docs/conformance.md shows both. Without a lab the tests check the comparison itself: recordings
// of kubelets in testdata are alike, and mutants of them are not.
package twin
