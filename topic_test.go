package gobridge

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestValidateTopicNamesTheReason(t *testing.T) {
	for _, tc := range []struct{ topic, want string }{
		{"a", ""},
		{"a/b/c", ""},
		{"/", ""},
		{"a//b", ""},
		{"site 1/Zürich/温度", ""},
		{strings.Repeat("x", MaxTopicBytes), ""},
		{"", "topic name: is empty"},
		{strings.Repeat("x", MaxTopicBytes+1), "topic name: is longer than 65535 bytes"},
		{"a+b", "topic name: holds a wildcard (+ or #)"},
		{"a/#", "topic name: holds a wildcard (+ or #)"},
		{"a\x00b", "topic name: holds a NUL character"},
		{"a\tb", "topic name: holds a control character, over which brokers close the connection"},
		{"a\u0085b", "topic name: holds a control character, over which brokers close the connection"},
		{"a\uffffb", "topic name: holds a Unicode noncharacter, over which brokers close the connection"},
		{"a\xffb", "topic name: is not valid UTF-8"},
		{"a\xed\xa0\x80b", "topic name: is not valid UTF-8"}, // a surrogate
		{"$SYS/broker", "topic name: starts with $, which belongs to the broker"},
		{"$share/g/a", "topic name: starts with $, which belongs to the broker"},
		{"a/$b", ""},
	} {
		err := ValidateTopic(tc.topic)
		got := ""
		if err != nil {
			got = err.Error()
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Code != CodeInvalidTopic || e.Class != ClassRejected {
				t.Errorf("ValidateTopic(%.20q): error %#v is not a rejected INVALID_TOPIC", tc.topic, err)
			}
		}
		if got != tc.want {
			t.Errorf("ValidateTopic(%.20q) = %q, want %q", tc.topic, got, tc.want)
		}
	}
}

func TestValidateFilterNamesTheReason(t *testing.T) {
	for _, tc := range []struct{ filter, want string }{
		{"a", ""},
		{"#", ""},
		{"+", ""},
		{"+/+/#", ""},
		{"a/+/b", ""},
		{"/", ""},
		{"$SYS/#", ""},
		{"$share/g/a/#", ""},
		{"", "is empty"},
		{"a/#/b", "# must be the last level"},
		{"a#", "+ and # must stand alone in their level"},
		{"a/b+/c", "+ and # must stand alone in their level"},
		{"a\x00", "holds a NUL character"},
		{strings.Repeat("x", MaxTopicBytes+1), "is longer than 65535 bytes"},
		{"$share", "a shared filter has the form $share/<group>/<filter>"},
		{"$share/g", "a shared filter has the form $share/<group>/<filter>"},
		{"$share/g/", "a shared filter has the form $share/<group>/<filter>"},
		{"$share//a", "the group of a shared filter must not be empty or hold a wildcard"},
		{"$share/+/a", "the group of a shared filter must not be empty or hold a wildcard"},
		{"$share/g/a#", "+ and # must stand alone in their level"},
	} {
		got := ""
		if err := ValidateFilter(tc.filter); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("ValidateFilter(%.20q) = %q, want %q", tc.filter, got, tc.want)
		}
	}
}

// Covers: S1-805
func TestSplitShare(t *testing.T) {
	for _, tc := range []struct {
		in, group, filter string
		shared            bool
	}{
		{"a/b", "", "a/b", false},
		{"$share/g/a/#", "g", "a/#", true},
		{"$share/g//a", "g", "/a", true},
		{"$share/g", "", "$share/g", false},
		{"$share/g/", "", "$share/g/", false},
		{"$shared/g/a", "", "$shared/g/a", false},
	} {
		group, filter, shared := SplitShare(tc.in)
		if group != tc.group || filter != tc.filter || shared != tc.shared {
			t.Errorf("SplitShare(%q) = %q, %q, %v", tc.in, group, filter, shared)
		}
	}
}

func TestMatchTopicFollowsTheStandard(t *testing.T) {
	for _, tc := range []struct {
		filter, topic string
		want          bool
	}{
		{"a", "a", true},
		{"a", "b", false},
		{"a", "a/b", false},
		{"a/b", "a", false},
		{"a/", "a", false},
		{"a", "a/", false},
		{"#", "a", true},
		{"#", "a/b/c", true},
		{"#", "/", true},
		{"a/#", "a", true},
		{"a/#", "a/", true},
		{"a/#", "a/b/c", true},
		{"a/#", "ab", false},
		{"a/+", "a", false},
		{"a/+", "a/", true},
		{"a/+", "a/b", true},
		{"a/+", "a/b/c", false},
		{"+", "/a", false},
		{"/+", "/a", true},
		{"+/+", "/a", true},
		{"+/b/#", "a/b", true},
		{"a/+/#", "a", false},
		{"A", "a", false},
		// Leading wildcards do not see the broker's own topics.
		{"#", "$SYS/uptime", false},
		{"+/uptime", "$SYS/uptime", false},
		{"$SYS/#", "$SYS/uptime", true},
		{"$SYS/+", "$SYS/uptime", true},
		{"a/#", "a/$SYS", true},
		{"#", "", false},
	} {
		if got := MatchTopic(tc.filter, tc.topic); got != tc.want {
			t.Errorf("MatchTopic(%q, %q) = %v, want %v", tc.filter, tc.topic, got, tc.want)
		}
	}
}

// matchByLevels is the standard's matching written for clarity, as an oracle.
func matchByLevels(filter, topic []string) bool {
	switch {
	case len(filter) > 0 && filter[0] == "#":
		return true
	case len(filter) == 0 || len(topic) == 0:
		return len(filter) == len(topic)
	case filter[0] != "+" && filter[0] != topic[0]:
		return false
	}
	return matchByLevels(filter[1:], topic[1:])
}

func matchOracle(filter, topic string) bool {
	if strings.HasPrefix(topic, "$") && strings.ContainsAny(filter[:1], "+#") {
		return false
	}
	return matchByLevels(strings.Split(filter, "/"), strings.Split(topic, "/"))
}

var (
	genTopic = rapid.Custom(func(t *rapid.T) string {
		levels := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "", "$s", "ab"}), 1, 4).Draw(t, "levels")
		return strings.Join(levels, "/")
	}).Filter(func(s string) bool { return s != "" })
	genFilter = rapid.Custom(func(t *rapid.T) string {
		levels := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "", "+", "+", "$s"}), 0, 3).Draw(t, "levels")
		if len(levels) == 0 || rapid.Bool().Draw(t, "hash") {
			levels = append(levels, "#")
		}
		return strings.Join(levels, "/")
	}).Filter(func(s string) bool { return ValidateFilter(s) == nil })
)

func TestMatchTopicAgreesWithTheOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		filter, topic := genFilter.Draw(t, "filter"), genTopic.Draw(t, "topic")
		if got, want := MatchTopic(filter, topic), matchOracle(filter, topic); got != want {
			t.Fatalf("MatchTopic(%q, %q) = %v, want %v", filter, topic, got, want)
		}
	})
}

// smallTopics lists every topic of up to 4 levels over a small alphabet.
func smallTopics() []string {
	level := []string{"a", "b", "c", "", "$s"}
	all, last := []string{}, level
	for range 4 {
		var longer []string
		for _, topic := range last {
			if topic != "" {
				all = append(all, topic)
			}
			for _, l := range level {
				longer = append(longer, topic+"/"+l)
			}
		}
		last = longer
	}
	return all
}

func TestIntersectionMatchesExactlyWhatBothFiltersMatch(t *testing.T) {
	topics := smallTopics()
	rapid.Check(t, func(t *rapid.T) {
		a, b := genFilter.Draw(t, "a"), genFilter.Draw(t, "b")
		both, ok := IntersectFilters(a, b)
		if ok && ValidateFilter(both) != nil {
			t.Fatalf("IntersectFilters(%q, %q) = %q, which is no filter", a, b, both)
		}
		if ok != FiltersOverlap(a, b) || ok != FiltersOverlap(b, a) {
			t.Fatalf("FiltersOverlap(%q, %q) is not symmetric", a, b)
		}
		found := false
		for _, topic := range topics {
			want := MatchTopic(a, topic) && MatchTopic(b, topic)
			found = found || want
			if got := ok && MatchTopic(both, topic); got != want {
				t.Fatalf("intersection %q of %q and %q: match of %q = %v, want %v", both, a, b, topic, got, want)
			}
		}
		if found != ok {
			t.Fatalf("FiltersOverlap(%q, %q) = %v, want %v", a, b, ok, found)
		}
	})
}

func TestTopicChecksDoNotAllocate(t *testing.T) {
	for name, f := range map[string]func(){
		"MatchTopic":    func() { MatchTopic("site/+/sensors/#", "site/7/sensors/temperature/1") },
		"ValidateTopic": func() { _ = ValidateTopic("site/7/sensors/temperature/1") },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func BenchmarkMatchTopic(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		MatchTopic("site/+/sensors/#", "site/7/sensors/temperature/1")
	}
}

func FuzzTopic(f *testing.F) {
	for _, seed := range [][2]string{{"a/+/#", "a/b"}, {"#", "$SYS"}, {"$share/g/a", "a"}, {"", ""}, {"a/#", "a"}, {"+", "\xff"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, filter, topic string) {
		if ValidateTopic(topic) == nil && (!utf8.ValidString(topic) || ValidateFilter(topic) != nil) {
			t.Fatalf("topic name %q is no filter", topic)
		}
		if ValidateFilter(filter) != nil {
			return
		}
		_, plain, _ := SplitShare(filter)
		if topic != "" {
			if got, want := MatchTopic(plain, topic), matchOracle(plain, topic); got != want {
				t.Fatalf("MatchTopic(%q, %q) = %v, want %v", plain, topic, got, want)
			}
		}
		if ValidateTopic(topic) == nil && MatchTopic(plain, topic) != FiltersOverlap(plain, topic) {
			t.Fatalf("a topic name as a filter: overlap of %q and %q differs from the match", plain, topic)
		}
	})
}
