package metric

import "strings"

// words are the parts of catalogue names that keep together although their
// letters change case.
var words = []string{"MQTT", "QoS", "DLQ", "E2E"}

// PromName returns the Prometheus name of a metric: gobridge_, the catalogue name
// in snake case, the unit, and _total for counters.
//
//	MQTTQoSDowngraded   gobridge_mqtt_qos_downgraded_total
//	DeliveryE2ELatency  gobridge_delivery_e2e_latency_seconds
func PromName(d *Desc) string {
	parts := []string{"gobridge"}
	for rest := d.Name; rest != ""; {
		n := wordLen(rest)
		parts = append(parts, strings.ToLower(rest[:n]))
		rest = rest[n:]
	}
	if d.Unit != "" {
		parts = append(parts, d.Unit)
	}
	if d.Kind == KindCounter {
		parts = append(parts, "total")
	}
	return strings.Join(parts, "_")
}

// wordLen returns the length of the first word of a catalogue name: one of words,
// or everything up to the next upper case letter.
func wordLen(s string) int {
	for _, w := range words {
		if strings.HasPrefix(s, w) {
			return len(w)
		}
	}
	if i := strings.IndexAny(s[1:], "ABCDEFGHIJKLMNOPQRSTUVWXYZ"); i >= 0 {
		return 1 + i
	}
	return len(s)
}

// PromHelp returns the HELP text of a metric, which starts with its catalogue
// name.
func PromHelp(d *Desc) string { return d.Name + ": " + d.Help }
