package gobridge

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func mustParse(t testing.TB, source string) *Template {
	t.Helper()
	tmpl, err := ParseTemplate(source)
	if err != nil {
		t.Fatalf("ParseTemplate(%q): %v", source, err)
	}
	return tmpl
}

func TestTemplateRendersEveryPlaceholder(t *testing.T) {
	e := &Envelope{
		Topic: "plant/7//temp", Subject: "reading", QoS: 1,
		Headers: []Property{{"unit", "C"}, {"unit", "F"}, {"empty", ""}},
		Payload: []byte(`{"site":{"name":"A/1","n":1.50,"big":12345678901234567890,"on":true,"list":["x",{"y":"z"}]},"":1}`),
	}
	for _, tc := range []struct{ source, want string }{
		{"fixed/address", "fixed/address"},
		{"", ""},
		{"{topic}", "plant/7//temp"},
		{"site-1/{topic}", "site-1/plant/7//temp"},
		{"{topic[0]}", "plant"},
		{"{topic[1]}-{topic[3]}", "7-temp"},
		{"x{topic[2]}x", "xx"},
		{"{topic[1:]}", "7//temp"},
		{"{topic[0:]}", "plant/7//temp"},
		{"{topic[3:]}", "temp"},
		{"{subject}/{header:unit}", "reading/C"},
		{"a{header:empty}b", "ab"},
		{"{header:mqtt.qos}/{header:mqtt.topic}", "1/plant/7//temp"},
		{"{payload:site.name}", "A/1"},
		{"{payload:site.n}/{payload:site.on}/{payload:site.big}", "1.50/true/12345678901234567890"},
		{"{payload:site.list.0}{payload:site.list.1.y}", "xz"},
		{"{{topic}}", "{topic}"},
		{"{{{topic[0]}}}", "{plant}"},
		{"a}}b{{c", "a}b{c"},
	} {
		got, err := mustParse(t, tc.source).Render(e)
		if err != nil || got != tc.want {
			t.Errorf("%q renders %q, %v, want %q", tc.source, got, err, tc.want)
		}
	}
}

func TestMissingValueIsARejectedMessageThatNamesThePlaceholder(t *testing.T) {
	e := &Envelope{Topic: "a/b", Payload: []byte(`{"a":{"b":1},"n":null,"l":[1]}`)}
	for _, tc := range []struct {
		source string
		e      *Envelope
		want   string
	}{
		{"x/{topic}", &Envelope{}, `address "x/{topic}": no value for {topic}: the message has no topic`},
		{"{topic[0]}", &Envelope{}, `address "{topic[0]}": no value for {topic[0]}: the topic has fewer levels`},
		{"{topic[2]}", e, `address "{topic[2]}": no value for {topic[2]}: the topic has fewer levels`},
		{"{topic[2:]}", e, `address "{topic[2:]}": no value for {topic[2:]}: the topic has fewer levels`},
		{"{subject}", e, `address "{subject}": no value for {subject}: the message has no subject`},
		{"s/{header:site}", e, `address "s/{header:site}": no value for {header:site}: the message has no such header`},
		{"{payload:a}", e, `address "{payload:a}": no value for {payload:a}: the field is an object or a list, not a single value`},
		{"{payload:l}", e, `address "{payload:l}": no value for {payload:l}: the field is an object or a list, not a single value`},
		{"{payload:l.1}", e, `address "{payload:l.1}": no value for {payload:l.1}: the payload has no such field`},
		{"{payload:l.x}", e, `address "{payload:l.x}": no value for {payload:l.x}: the payload has no such field`},
		{"{payload:n}", e, `address "{payload:n}": no value for {payload:n}: the field is null`},
		{"{payload:a.b.c}", e, `address "{payload:a.b.c}": no value for {payload:a.b.c}: the payload has no such field`},
		{"{payload:z}", e, `address "{payload:z}": no value for {payload:z}: the payload has no such field`},
		{"{payload:z}", &Envelope{Payload: []byte("21.5 C")}, `address "{payload:z}": no value for {payload:z}: the payload is not JSON`},
		{"{payload:z}", &Envelope{}, `address "{payload:z}": no value for {payload:z}: the payload is not JSON`},
	} {
		_, err := mustParse(t, tc.source).Render(tc.e)
		if err == nil || err.Error() != tc.want {
			t.Errorf("%q: error %v, want %q", tc.source, err, tc.want)
			continue
		}
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeAddressTemplate || e.Class != ClassRejected {
			t.Errorf("%q: error %#v is not a rejected ADDRESS_TEMPLATE", tc.source, err)
		}
	}
}

func TestParseTemplateSaysWhatIsWrong(t *testing.T) {
	for _, tc := range []struct{ source, want string }{
		{"{topic", "{topic has no closing }; a literal { is written {{"},
		{"a}b", "a } without its {; a literal } is written }}"},
		{"{topic}}", "a } without its {; a literal } is written }}"},
		{"{}", "{} is no placeholder; there are {topic}, {topic[N]}, {topic[N:]}, {subject}, {header:NAME} and {payload:json.path}"},
		{"{topics}", "{topics} is no placeholder; there are {topic}, {topic[N]}, {topic[N:]}, {subject}, {header:NAME} and {payload:json.path}"},
		{"{header:}", "{header:} is no placeholder; there are {topic}, {topic[N]}, {topic[N:]}, {subject}, {header:NAME} and {payload:json.path}"},
		{"{topic[-1]}", "{topic[-1]} is no level of the topic; write {topic[0]} or {topic[1:]}"},
		{"{topic[1:2]}", "{topic[1:2]} is no level of the topic; write {topic[0]} or {topic[1:]}"},
		{"{topic[99999]}", "{topic[99999]} is no level of the topic; write {topic[0]} or {topic[1:]}"},
		{"{topic[1}", "{topic[1} is no level of the topic; write {topic[0]} or {topic[1:]}"},
		{"{payload:}", "{payload:} has an empty name in its path; write {payload:site.name}"},
		{"{payload:a..b}", "{payload:a..b} has an empty name in its path; write {payload:site.name}"},
	} {
		if _, err := ParseTemplate(tc.source); err == nil || err.Error() != tc.want {
			t.Errorf("ParseTemplate(%q): %v, want %q", tc.source, err, tc.want)
		}
	}
}

func TestTemplateStaticAndSample(t *testing.T) {
	for _, tc := range []struct {
		source, static, sample string
		ok                     bool
	}{
		{"", "", "", true},
		{"a/{{b}}", "a/{b}", "a/{b}", true},
		{"a/{topic}", "", "a/x", false},
		{"{subject}/{header:h}", "", "x/x", false},
	} {
		tmpl := mustParse(t, tc.source)
		if s, ok := tmpl.Static(); s != tc.static || ok != tc.ok {
			t.Errorf("%q: Static = %q, %v", tc.source, s, ok)
		}
		if s := tmpl.Sample(); s != tc.sample {
			t.Errorf("%q: Sample = %q, want %q", tc.source, s, tc.sample)
		}
	}
}

func TestTemplatePattern(t *testing.T) {
	for _, tc := range []struct{ source, filter, want string }{
		{"fixed/a", "#", "fixed/a"},
		{"{topic}", "a/+/#", "a/+/#"},
		{"{topic}", "$share/g/a/+", "a/+"},
		{"site-1/{topic}", "a/+", "site-1/a/+"},
		{"x-{topic}", "+/b", "+/b"},
		{"x-{topic}", "a/b", "x-a/b"},
		{"{topic}/out", "a/+", "a/+/out"},
		{"{topic}/out", "a/#", "a/#"},
		{"{topic}out", "a/#", "#"},
		{"p/{topic}out", "a/#", "p/#"},
		{"p/{topic}", "#", "p/#"},
		{"p/{topic}out", "#", "p/#"},
		{"{topic[1]}/x", "a/+/b", "+/x"},
		{"{topic[1]}/x", "a/#", "+/x"},
		{"{topic[5]}", "a/#", "+"},
		{"{topic[1:]}", "a/b/+/#", "b/+/#"},
		{"{topic[2:]}", "a/#", "#"},
		{"{topic[0]}-{topic[1]}", "a/b", "a-b"},
		{"{subject}", "a", "#"},
		{"a/{subject}", "a", "a/#"},
		{"a/{header:h}/b", "a", "a/#"},
		{"a/x{payload:p}b", "a", "a/#"},
		{"{topic}{subject}", "a/#", "#"},
	} {
		if got, ok := mustParse(t, tc.source).Pattern(tc.filter); !ok || got != tc.want {
			t.Errorf("%q of %q: pattern %q, %v, want %q", tc.source, tc.filter, got, ok, tc.want)
		}
	}
	for _, source := range []string{"{topic[2]}", "x/{topic[2:]}"} {
		if got, ok := mustParse(t, source).Pattern("a/+"); ok {
			t.Errorf("%q of a/+: pattern %q, want none", source, got)
		}
	}
}

var genTemplate = rapid.Custom(func(t *rapid.T) string {
	parts := rapid.SliceOfN(rapid.SampledFrom([]string{
		"a", "/", "b/", "x-", "{topic}", "{topic[0]}", "{topic[1]}", "{topic[2]}", "{topic[1:]}", "{subject}", "{header:h}",
	}), 0, 5).Draw(t, "parts")
	return strings.Join(parts, "")
})

func TestPatternCoversEveryRenderedTopic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		source, filter, topic := genTemplate.Draw(t, "template"), genFilter.Draw(t, "filter"), genTopic.Draw(t, "topic")
		if !MatchTopic(filter, topic) {
			t.Skip("the topic does not match")
		}
		tmpl, err := ParseTemplate(source)
		if err != nil {
			t.Fatal(err)
		}
		value := rapid.SampledFrom([]string{"v", "v/w", "/", "a"})
		address, err := tmpl.Render(&Envelope{
			Topic: topic, Subject: value.Draw(t, "subject"), Headers: []Property{{"h", value.Draw(t, "header")}},
		})
		if err != nil || ValidateTopic(address) != nil {
			return
		}
		if pattern, ok := tmpl.Pattern(filter); !ok || ValidateFilter(pattern) != nil || !MatchTopic(pattern, address) {
			t.Fatalf("%q of %q: pattern %q, %v does not cover %q", source, filter, pattern, ok, address)
		}
	})
}

func TestConstantAndLoneTopicDoNotAllocate(t *testing.T) {
	e := &Envelope{Topic: "a/b/c", Subject: "s"}
	for _, source := range []string{"fixed/address", "{topic}", "{topic[1:]}", "{subject}"} {
		tmpl := mustParse(t, source)
		if n := testing.AllocsPerRun(100, func() { _, _ = tmpl.Render(e) }); n != 0 {
			t.Errorf("%q allocates %v times", source, n)
		}
	}
	tmpl := mustParse(t, "site-1/{topic}")
	if n := testing.AllocsPerRun(100, func() { _, _ = tmpl.Render(e) }); n > 2 {
		t.Errorf("a prefixed topic allocates %v times, want at most 2", n)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{"site/{topic}", "{topic[1:]}", "{payload:a.0}", "{{x}}", "{header:h}{subject}", "}", "{topic[", "{"} {
		f.Add(seed, "a/+/#", "a/b/c", []byte(`{"a":[1]}`))
	}
	f.Fuzz(func(t *testing.T, source, filter, topic string, payload []byte) {
		tmpl, err := ParseTemplate(source)
		if err != nil {
			return
		}
		if tmpl.String() != source {
			t.Fatalf("%q comes back as %q", source, tmpl.String())
		}
		e := &Envelope{Topic: topic, Payload: payload, Headers: []Property{{"h", "v"}}}
		address, err := tmpl.Render(e)
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeAddressTemplate {
				t.Fatalf("%q: %v", source, err)
			}
			return
		}
		if s, ok := tmpl.Static(); ok && s != address {
			t.Fatalf("static %q renders %q", s, address)
		}
		if ValidateFilter(filter) != nil || ValidateTopic(topic) != nil || ValidateTopic(address) != nil {
			return
		}
		_, plain, _ := SplitShare(filter)
		if pattern, ok := tmpl.Pattern(filter); MatchTopic(plain, topic) && (!ok || !MatchTopic(pattern, address)) {
			t.Fatalf("%q of %q: pattern %q, %v does not cover %q", source, filter, pattern, ok, address)
		}
	})
}
