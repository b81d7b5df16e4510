package provider

import v1 "k8s.io/api/core/v1"

// pressures has the kubelet's reasons and messages of each pressure condition, False and True, and
// the events for its changes.
var pressures = map[v1.NodeConditionType][2]struct{ reason, message, event string }{
	v1.NodeMemoryPressure: {
		{"KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"},
		{"KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "NodeHasInsufficientMemory"}},
	v1.NodeDiskPressure: {
		{"KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"},
		{"KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"}},
	v1.NodePIDPressure: {
		{"KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"},
		{"KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"}},
}

// SetPressure sets a pressure condition. The node controller turns it into the taint that keeps
// pods away.
func (n *Node) SetPressure(t v1.NodeConditionType, pressed bool) {
	words, status := pressures[t][0], v1.ConditionFalse
	if pressed {
		words, status = pressures[t][1], v1.ConditionTrue
	}
	if n.status.setCondition(Condition{t, status, words.reason, words.message}) {
		n.recordStatus(words.event)
	}
}

// recordPressures records the events of the pressure conditions of a new node. A kubelet's are all False
// then.
func (n *Node) recordPressures() {
	for _, t := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		n.recordStatus(pressures[t][0].event)
	}
}

// RecordEvent records an event on the node.
func (n *Node) RecordEvent(kind, reason, message string) {
	n.cfg.Recorder.Event(n.reference(), kind, reason, message)
}
