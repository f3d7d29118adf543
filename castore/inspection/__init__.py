"""Looking at what a store holds without loading states: objects, values, what they are made of."""
